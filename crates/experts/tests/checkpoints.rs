//! Resident, packed and streamed experts of real files have the bytes of the checkpoint's tensors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use turbospark_experts::{LoadOptions, PackedExperts, ResidentExperts, StreamOptions, StreamedExperts};
use turbospark_formats::Checkpoint;
use turbospark_program::{
    Builder, ExpertError, ExpertLayer, ExpertLayout, ExpertPacker, ExpertRef, ExpertSource, Program,
};

/// Fixtures with routed experts: float, k-quants, MXFP4 as GGUF and as Hugging Face has it, MLX; plain, fused and
/// transposed.
const FIXTURES: [&str; 12] = [
    "gpt_oss/hf",
    "gpt_oss/hf-mxfp4",
    "gpt_oss/mlx-4bit",
    "gpt_oss/gguf-f32.gguf",
    "gpt_oss/gguf-q4_k_m.gguf",
    "qwen3_moe/hf",
    "qwen3_moe_wide/gguf-zoo.gguf",
    "gemma4_moe/hf",
    "gemma4_moe/gguf-bf16.gguf",
    "mixtral/hf",
    "mixtral/mlx-4bit",
    "mixtral/gguf-mxfp4.gguf",
];

fn open(name: &str) -> (Checkpoint, Program) {
    let fixtures: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let checkpoint = Checkpoint::open(&fixtures.join(name)).unwrap();
    let program = program(&checkpoint, |layer| layer);
    assert!(!program.expert_layers().is_empty(), "{name} has no experts");
    (checkpoint, program)
}

/// A program that has the checkpoint's experts and does nothing with them.
fn program(checkpoint: &Checkpoint, change: impl Fn(ExpertLayer) -> ExpertLayer) -> Program {
    let mut builder = Builder::new(8, 8);
    let table = builder.weight("table", &[8, 8]);
    let logits = builder.embed(table, 1.0);
    for (name, tensor) in checkpoint.tensors() {
        if let Some(stem) = name.strip_suffix(".experts.gate_proj.weight") {
            let &[experts, intermediate, hidden] = tensor.shape() else { panic!("{name} is no stack") };
            let stack = |matrix: &str| format!("{stem}.experts.{matrix}_proj.weight");
            let (gate, up, down) = (stack("gate"), stack("up"), stack("down"));
            let layer = 0;
            builder.expert_layer(change(ExpertLayer {
                layer,
                experts,
                k: 2,
                hidden,
                intermediate,
                gate,
                up,
                down,
            }));
        }
    }
    builder.finish(logits, 1).unwrap()
}

/// All matrices as f32.
struct Wide;

impl Wide {
    fn of(raw: &ExpertRef<'_>) -> Vec<u8> {
        let matrices = [raw.gate, raw.up, raw.down];
        matrices.iter().flat_map(|matrix| matrix.to_f32()).flat_map(f32::to_le_bytes).collect()
    }
}

impl ExpertPacker for Wide {
    fn id(&self) -> &'static str {
        "wide"
    }
    fn bytes(&self, raw: &ExpertLayout) -> usize {
        12 * raw.gate.layout.rows * raw.gate.layout.columns
    }
    fn pack(&self, raw: &ExpertRef<'_>, out: &mut [u8]) {
        out.copy_from_slice(&Wide::of(raw));
    }
}

fn check(name: &str, checkpoint: &Checkpoint, program: &Program, source: &dyn ExpertSource) {
    for (index, layer) in program.expert_layers().iter().enumerate() {
        let stacks = [&layer.gate, &layer.up, &layer.down].map(|name| checkpoint.get(name).unwrap());
        let ids: Vec<u32> = (0..layer.experts as u32).collect();
        let mut request = source.begin(index, &ids).unwrap();
        let mut count = 0;
        while let Some(lease) = request.next().unwrap() {
            let [gate, up, down] = stacks.map(|stack| stack.matrix(lease.expert as usize));
            let expected = Wide::of(&ExpertRef { gate, up, down });
            let found = match source.packing() {
                Some(_) => lease.slice(0).to_vec(),
                None => Wide::of(&lease.matrices(source.layout(index)).unwrap()),
            };
            assert!(found == expected, "{name}: expert {} of layer {index}", lease.expert);
            count += 1;
        }
        assert_eq!(count, ids.len());
    }
}

#[test]
fn every_source_has_the_checkpoints_bytes() {
    for name in FIXTURES {
        let (checkpoint, program) = open(name);
        let resident = ResidentExperts::open(&program, &checkpoint).unwrap();
        check(name, &checkpoint, &program, &resident);
        check(
            name,
            &checkpoint,
            &program,
            &PackedExperts::open(&program, &checkpoint, &Wide, LoadOptions::default(), &|_| {}).unwrap(),
        );
        for packer in [None, Some(Arc::new(Wide) as Arc<dyn ExpertPacker>)] {
            let open = |budget| {
                StreamedExperts::open(&program, &checkpoint, packer.clone(), &StreamOptions::new(budget))
            };
            let Err(ExpertError::Budget { least, .. }) = open(0) else { panic!("{name}: no budget works") };
            for budget in [least, least * 3 / 2, 1 << 30] {
                let streamed = open(budget).unwrap();
                for _ in 0..2 {
                    check(name, &checkpoint, &program, &streamed);
                }
            }
        }
    }
}

#[test]
fn fused_gate_and_up_are_read_once() {
    let slices = |name: &str| {
        let (checkpoint, program) = open(name);
        ResidentExperts::open(&program, &checkpoint).unwrap().layout(0).slice_bytes.len()
    };
    assert_eq!(slices("gpt_oss/hf-mxfp4"), 4);
    assert_eq!(slices("gpt_oss/gguf-f32.gguf"), 3);
    assert_eq!(slices("mixtral/mlx-4bit"), 9);
}

#[test]
fn stacks_that_are_not_as_the_program_needs_them_are_named() {
    let (checkpoint, _) = open("mixtral/hf");
    let refused = |change: &dyn Fn(&mut ExpertLayer)| {
        let program = program(&checkpoint, |mut layer| {
            change(&mut layer);
            layer
        });
        ResidentExperts::open(&program, &checkpoint).unwrap_err().to_string()
    };
    assert!(refused(&|layer| layer.up.push('s')).contains("weights: missing"));
    let shape = refused(&|layer| layer.experts += 1);
    assert!(shape.contains("gate_proj.weight: the shape is [8") && shape.contains("asks for [9"), "{shape}");
}
