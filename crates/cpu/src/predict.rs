//! What the next layer's router would choose, so that its experts can be read while this layer's are computed.
//!
//! The residual stream changes little from layer to layer: the next router is asked with this layer's input, its
//! norm's factors exchanged for the next one's. A wrong guess costs a read, never a result.

use turbospark_program::{Op, Program, Reg, Routing};

use crate::activations::Activations;
use crate::executor::form;
use crate::isa::Isa;
use crate::linears::{self, Job};
use crate::load::Loaded;
use crate::pool::Pool;
use crate::registers::Registers;
use crate::route::Routes;

/// Batches of more rows use most experts anyway.
const MOST_ROWS: usize = 4;

/// Asks routers ahead of their turn.
pub(crate) struct Predictor {
    /// For each expert layer, the router of the next.
    routers: Vec<Option<Router>>,
    input: Vec<f32>,
    activations: Activations,
    logits: Vec<f32>,
    routes: Routes,
}

struct Router {
    /// Input of this layer's router.
    x: Reg,
    /// The op that is the next layer's router.
    linear: usize,
    routing: Routing,
    /// The next norm's factors over this one's; empty if either has none.
    ratio: Vec<f32>,
}

impl Predictor {
    pub fn new(program: &Program, loaded: &Loaded) -> Predictor {
        let routers = (0..program.expert_layers().len()).map(|layer| router(program, loaded, layer));
        Predictor {
            routers: routers.collect(),
            input: Vec::new(),
            activations: Activations::new(),
            logits: Vec::new(),
            routes: Routes::default(),
        }
    }

    /// The experts that the layer after `layer` will probably use.
    pub fn next(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        loaded: &Loaded,
        registers: &Registers,
        layer: usize,
    ) -> Option<&[u32]> {
        let Router { x, linear, routing, ratio } = self.routers.get(layer)?.as_ref()?;
        let (rows, width) = (registers.rows(*x), registers.width(*x));
        if rows > MOST_ROWS {
            return None;
        }
        self.input.clear();
        self.input.extend_from_slice(&registers.read(*x)[..rows * width]);
        for row in self.input.chunks_exact_mut(width) {
            row.iter_mut().zip(ratio).for_each(|(value, ratio)| *value *= ratio);
        }
        let input = &self.input;
        let row = |row: usize| &input[row * width..(row + 1) * width];
        self.activations.fill(isa, form(loaded, *linear), rows, width, row);
        let matrix = loaded.matrix(*linear)?;
        self.logits.resize(rows * matrix.layout().rows(), 0.0);
        linears::run(
            pool,
            isa,
            &[Some(Job::new(matrix.panels(), &self.activations, None, &mut self.logits))],
        );
        self.routes.choose(pool, isa, routing, None, &self.logits, rows);
        Some(&self.routes.distinct)
    }
}

/// The router that follows on expert layer `layer`.
fn router(program: &Program, loaded: &Loaded, layer: usize) -> Option<Router> {
    let (x, _, _) = find(program, layer)?;
    let (next_x, linear, routing) = find(program, layer + 1)?;
    let factors = |x: Reg| {
        let norm = program.ops().iter().position(|op| op.out() == Some(x))?;
        loaded.factors(norm)
    };
    let ratio = match (factors(x), factors(next_x)) {
        (Some(this), Some(next)) => {
            let ratio = |(&this, &next): (&f32, &f32)| if this.abs() > 1e-6 { next / this } else { 0.0 };
            this.iter().zip(next).map(ratio).collect()
        }
        _ => Vec::new(),
    };
    (program.register(x).width == program.register(next_x).width).then_some(Router {
        x,
        linear,
        routing,
        ratio,
    })
}

/// Of an expert layer: the input of its router, the op that computes the router's logits, and the choice.
fn find(program: &Program, wanted: usize) -> Option<(Reg, usize, Routing)> {
    let (logits, routing) = program.ops().iter().find_map(|op| match op {
        Op::Route { logits, routing, layer, .. } if *layer == wanted => Some((*logits, *routing)),
        _ => None,
    })?;
    program.ops().iter().enumerate().find_map(|(index, op)| match op {
        Op::Linear { x, out, .. } if *out == logits => Some((*x, index, routing)),
        _ => None,
    })
}
