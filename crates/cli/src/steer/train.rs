//! `turbospark steer train`: a direction for each layer from two sets of prompts.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use turbospark_engine::Model;
use turbospark_engine::steering::Steer;
use turbospark_engine::steering::train::{Method, Sample, Sets, Training, separation_plot, train};

use super::{Rows, along, edits, generate};
use crate::error::CliError;
use crate::options::RunArgs;
use crate::prompts::{self, Prompt};
use crate::terminal::Bar;

/// Strengths tried for the suggestion, smallest first.
const STRENGTHS: [f32; 8] = [0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0];

/// Make steering vectors from two sets of prompts
#[derive(Args)]
#[command(
    after_help = "Prompts are JSON lines (see `turbospark capture --help`) or, in files of other names, plain lines. The \
last part of each\nfile (--held-out) is kept from training: separation is measured on it. A direction is as long as the \
means are apart,\nso strength 1 moves a row from one mean to the other.\n\nExample:\n  turbospark steer train model.gguf \
--positive happy.jsonl --negative sad.jsonl --out happy.gguf --plot happy.svg"
)]
pub struct TrainArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store; without it the demo model
    model: Option<PathBuf>,
    /// Prompts that the vectors should lead to
    #[arg(long, value_name = "FILE")]
    positive: PathBuf,
    /// Prompts that they should lead from
    #[arg(long, value_name = "FILE")]
    negative: PathBuf,
    /// How the direction is found
    #[arg(long, value_enum, default_value_t = MethodName::MeanDifference)]
    method: MethodName,
    /// Rows of a prompt that are used
    #[arg(long, value_enum, default_value_t = Rows::Last)]
    rows: Rows,
    /// Share of each file that is kept from training
    #[arg(long, value_name = "SHARE", default_value_t = 0.25)]
    held_out: f64,
    /// The vectors to write: .gguf (for llama.cpp too) or .safetensors
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Where the plot of separation by layer goes [default: beside --out, as .svg]
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Text that samples before and after begin with [default: the last negative prompt]
    #[arg(long, value_name = "TEXT")]
    sample: Option<String>,
    /// Tokens of a sample
    #[arg(long, value_name = "N", default_value_t = 60)]
    sample_tokens: usize,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MethodName {
    /// From the mean of the negative rows to that of the positive ones
    MeanDifference,
    /// The first principal component of the differences of the n-th rows
    Pca,
    /// The normal of the plane of logistic regression
    Logistic,
}

impl MethodName {
    fn method(self) -> Method {
        match self {
            MethodName::MeanDifference => Method::MeanDifference,
            MethodName::Pca => Method::Pca,
            MethodName::Logistic => Method::Logistic,
        }
    }
}

/// Prompts of one kind and their samples, the last `held` of them not for training.
struct Kind {
    prompts: Vec<Prompt>,
    samples: Vec<Sample>,
    held: usize,
}

impl Kind {
    fn train(&self) -> &[Sample] {
        &self.samples[..self.samples.len() - self.held]
    }

    fn held_out(&self) -> &[Sample] {
        &self.samples[self.samples.len() - self.held..]
    }
}

impl TrainArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let mut model = self.run.open(self.model.as_ref())?;
        let positive = self.kind(&mut model, &self.positive)?;
        let negative = self.kind(&mut model, &self.negative)?;
        let sets = Sets { positive: positive.train(), negative: negative.train() };
        let held_out = Sets { positive: positive.held_out(), negative: negative.held_out() };
        let mut training = train(self.method.method(), sets, held_out)
            .map_err(|fault| CliError::Usage(format!("these prompts make no vectors: {fault}")))?;
        training.vectors.model = Some(model.kind().to_owned());
        println!(
            "{} + {} prompts to train on, {} + {} held out",
            sets.positive.len(),
            sets.negative.len(),
            positive.held,
            negative.held
        );
        print_separations(&training);
        let layers = training.suggested_layers();
        let (strength, reached) = self.strength(&mut model, &training, &positive, &negative)?;
        let suggested = format!("add:{strength}:{}-{}", layers.start(), layers.end());
        println!("suggested: --steer {}:{suggested}", self.out.display());
        println!(
            "  held-out negative prompts then reach {:.0} % of the way to the positive mean, after the last layer",
            100.0 * reached
        );
        training.vectors.notes.insert("suggested".to_owned(), suggested);
        self.write(&training)?;
        self.samples(&mut model, &training, &negative, strength)
    }

    fn kind(&self, model: &mut Model, path: &Path) -> Result<Kind, CliError> {
        let prompts = prompts::read(path, model)?;
        let held = (prompts.len() as f64 * self.held_out).round().max(1.0) as usize;
        if !(0.0..1.0).contains(&self.held_out) || held + 2 > prompts.len() {
            let reason =
                format!("{} prompts, of which {held} are held out: two or more must be left", prompts.len());
            return Err(CliError::file(path, reason));
        }
        let bar = Bar::counting("sampling", prompts.len());
        let mut samples = Vec::new();
        for (index, prompt) in prompts.iter().enumerate() {
            samples.push(model.engine.sample(&prompt.ids, self.rows.pooling())?);
            bar.set(index + 1);
        }
        Ok(Kind { prompts, samples, held })
    }

    /// The smallest strength tried that moves held-out negative prompts as far as the positive mean, as the last
    /// layer's direction sees it; if none does, the one that moves them farthest. And how far that is.
    fn strength(
        &self,
        model: &mut Model,
        training: &Training,
        positive: &Kind,
        negative: &Kind,
    ) -> Result<(f32, f64), CliError> {
        let last = training.separations.len() - 1;
        let mean = |samples: &[Sample]| {
            let sum: f64 = samples.iter().map(|s| along(&s.layers[last], &training.vectors, last)).sum();
            sum / samples.len() as f64
        };
        let (high, low) = (mean(positive.held_out()), mean(negative.held_out()));
        let prompts = &negative.prompts[negative.prompts.len() - negative.held..];
        let mut best = (STRENGTHS[0], f64::MIN);
        for strength in STRENGTHS {
            let edits = edits(&self.steer(training, strength), &training.vectors, model)?;
            model.engine.set_edits(edits.prompt);
            let mut samples = Vec::new();
            for prompt in prompts {
                samples.push(model.engine.sample(&prompt.ids, self.rows.pooling())?);
            }
            model.engine.set_edits(Vec::new());
            let reached = (mean(&samples) - low) / (high - low);
            if reached > best.1 {
                best = (strength, reached);
            }
            if reached >= 1.0 {
                break;
            }
        }
        Ok(best)
    }

    fn steer(&self, training: &Training, strength: f32) -> Steer {
        Steer { strength, layers: Some(training.suggested_layers()), ..Steer::new(&self.out) }
    }

    fn write(&self, training: &Training) -> Result<(), CliError> {
        let left_out = training.vectors.save(&self.out).map_err(turbospark_engine::EngineError::from)?;
        if !left_out.is_empty() {
            println!("layer 0 is not in {}: a control-vector GGUF has no place for it", self.out.display());
        }
        let plot = self.plot.clone().unwrap_or_else(|| self.out.with_extension("svg"));
        let svg = separation_plot(&training.separations, &training.suggested_layers());
        std::fs::write(&plot, svg).map_err(|error| CliError::file(&plot, error))
    }

    fn samples(
        &self,
        model: &mut Model,
        training: &Training,
        negative: &Kind,
        strength: f32,
    ) -> Result<(), CliError> {
        if model.text().is_err() {
            println!("no samples: this model has no tokenizer");
            return Ok(());
        }
        let given = match &self.sample {
            Some(text) => {
                let ids = model.text()?.raw_ids(text)?;
                Some(Prompt { text: Some(text.clone()), ids, rendered: false })
            }
            None => None,
        };
        let prompt = given.as_ref().unwrap_or(&negative.prompts[negative.prompts.len() - 1]);
        let steered = edits(&self.steer(training, strength), &training.vectors, model)?;
        for (name, edits) in [("before", Default::default()), ("after", steered)] {
            let (_, text) = generate(model, prompt, &edits, self.sample_tokens)?;
            println!("{name}: {text}");
        }
        Ok(())
    }
}

fn print_separations(training: &Training) {
    println!("layer  accuracy  distance  mean +    mean -    length");
    for s in &training.separations {
        println!(
            "{:5}  {:8.3}  {:8.2}  {:8.3}  {:8.3}  {:8.3}",
            s.layer, s.accuracy, s.d_prime, s.positive_mean, s.negative_mean, s.length
        );
    }
}
