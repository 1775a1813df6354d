//! How near the kernels come to the machine: one row against a plain read of the same memory, many rows against the
//! peak rate of integer multiply-adds.
//!
//!     cargo run --release -p turbospark-cpu --example kernels -- [--threads N] [--isa NAME] [--mib N] [--columns N] [KIND..]
//!
//! KIND picks formats by a part of their name. Each figure is the best of several runs, each share the median of pairs
//! that were measured one after the other: machines drift.

use std::hint::black_box;
use std::time::Instant;

use turbospark_cpu::{
    Activations, Ceilings, CpuOptions, Form, Isa, LANES, Outputs, PackedMatrix, PanelKind, PanelLayout,
    linear, pack_panels,
};
use turbospark_formats::{Float, Format, MatrixLayout, MatrixRef};

struct Options {
    isa: Isa,
    threads: usize,
    bytes: usize,
    columns: usize,
    kinds: Vec<String>,
}

fn options() -> Options {
    let mut options =
        Options { isa: Isa::detect(), threads: 1, bytes: 256 << 20, columns: 2880, kinds: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("the option has a value");
        match argument.as_str() {
            "--isa" => options.isa = Isa::named(&value()).expect("the machine has this instruction set"),
            "--threads" => options.threads = value().parse().expect("a number"),
            "--mib" => options.bytes = value().parse::<usize>().expect("a number") << 20,
            "--columns" => options.columns = value().parse().expect("a number"),
            kind => options.kinds.push(kind.to_lowercase()),
        }
    }
    options
}

fn main() {
    let options = options();
    let affine = |bits| Format::MlxAffine { bits, group: 64, scales: Float::BF16 };
    let formats = [
        Format::MXFP4,
        Format::Q4_0,
        Format::IQ4_NL,
        Format::Q5_0,
        Format::Q8_0,
        Format::Q4_1,
        Format::Q5_1,
        Format::Q4_K,
        Format::Q5_K,
        Format::IQ4_XS,
        Format::Q6_K,
        Format::Q3_K,
        Format::Q2_K,
        affine(2),
        affine(3),
        affine(4),
        affine(6),
        affine(8),
        Format::Float(Float::BF16),
        Format::Float(Float::F16),
        Format::Float(Float::F32),
    ];
    println!("{} with {} threads", options.isa, options.threads);
    println!(
        "{:18}{:>6}{:>6}{:>7}   multiply-adds 10^9/s (share of the peak) with 2, 4, 8, 64, 512 rows",
        "", "pack", "GB/s", "share"
    );
    for format in formats {
        let name = format.to_string().to_lowercase();
        if options.kinds.is_empty() || options.kinds.iter().any(|kind| name.contains(kind)) {
            measure(&options, format);
        }
    }
}

/// Weights of this format whose bytes, wherever scales are, make numbers of usual size.
fn weights(isa: Isa, format: Format, columns: usize, bytes: usize) -> (PackedMatrix, f64) {
    let few = MatrixLayout::plain(format, 64 * LANES, columns);
    let mut state = 1u32;
    let parts: Vec<Vec<u8>> = (0..format.parts())
        .map(|part| {
            let random = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 & 0xbb | 0x20
            };
            std::iter::repeat_with(random).take(few.part_bytes(part).unwrap()).collect()
        })
        .collect();
    let views: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let matrix = MatrixRef::new(&few, &views).unwrap();
    let layout = PanelLayout::of(&few).unwrap();
    let mut panels = vec![0; layout.bytes()];
    let packing = best(5, || pack_panels(isa, &matrix, &layout, 0..layout.panels(), &mut panels));

    let rows = (bytes / layout.panel_bytes()).max(32) * LANES;
    let mut all =
        PackedMatrix::zeroed(PanelLayout::new(PanelKind::of(format), rows, columns).unwrap()).unwrap();
    for chunk in all.bytes_mut().chunks_mut(panels.len()) {
        chunk.copy_from_slice(&panels[..chunk.len()]);
    }
    (all, layout.bytes() as f64 / packing / 1e9)
}

fn best(times: usize, mut run: impl FnMut()) -> f64 {
    (0..times).map(|_| seconds(&mut run)).fold(f64::MAX, f64::min)
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs one closure a thread, the first on this one.
fn on_threads(threads: usize, run: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for index in 1..threads {
            let run = &run;
            scope.spawn(move || run(index));
        }
        run(0);
    });
}

fn multiply(options: &Options, weights: &PackedMatrix, x: &Activations, out: &mut [f32], repeats: usize) {
    let layout = *weights.layout();
    let outputs = Outputs::new(out, x.rows(), layout.rows(), layout.rows());
    on_threads(options.threads, |index| {
        let panels = layout.share(index, options.threads);
        // SAFETY: the shares of threads do not overlap.
        let mut part = unsafe { outputs.part(layout.outputs(panels.clone())) };
        for _ in 0..repeats {
            linear(options.isa, &weights.panels(), panels.clone(), x, &mut part);
        }
    });
}

fn input(isa: Isa, form: Form, rows: usize, columns: usize) -> Activations {
    let x: Vec<f32> = (0..rows * columns).map(|i| (i * 7 % 201) as f32 / 100.0 - 1.0).collect();
    let mut input = Activations::new();
    input.fill(isa, form, rows, columns, |r| &x[r * columns..(r + 1) * columns]);
    input
}

fn measure(options: &Options, format: Format) {
    let columns = options.columns / format.block() * format.block();
    let form = if format.is_float() { Form::Floats } else { Form::Blocks };
    let (large, packing) = weights(options.isa, format, columns, options.bytes);
    let layout = *large.layout();
    let mut out = vec![0.0; layout.rows()];
    let x = input(options.isa, form, 1, columns);
    let bytes = large.panels().bytes();
    let pairs: Vec<(f64, f64)> = (0..15)
        .map(|_| {
            let read = seconds(|| {
                on_threads(options.threads, |index| {
                    let share = layout.share(index, options.threads);
                    black_box(read(
                        &bytes[share.start * layout.panel_bytes()..share.end * layout.panel_bytes()],
                    ));
                });
            });
            (read, seconds(|| multiply(options, &large, &x, &mut out, 1)))
        })
        .collect();
    let rate = bytes.len() as f64 / 1e9 / pairs.iter().fold(f64::MAX, |m, p| m.min(p.1));
    let share = median(pairs.iter().map(|(read, ours)| read / ours).collect());
    print!("{:18}{packing:6.1}{rate:6.1}{:6.1}%  ", format.to_string(), share * 100.0);
    drop(large);

    let (some, _) = weights(options.isa, format, columns, 4 << 20);
    let as_executor = CpuOptions { isa: options.isa, threads: options.threads, ..CpuOptions::default() };
    let mut ceilings = Ceilings::within(&as_executor, 4 << 20).expect("the system gives threads and memory");
    let outputs = some.layout().rows();
    for rows in [2, 4, 8, 64, 512] {
        let x = input(options.isa, form, rows, columns);
        let mut out = vec![0.0; rows * outputs];
        let work = (rows * outputs * columns) as f64 / 1e9;
        let repeats = ((0.02 * 150.0 / work) as usize).max(1);
        let pairs: Vec<(f64, f64)> = (0..9)
            .map(|_| {
                let peak = ceilings.multiply_adds() / 1e9;
                let time = seconds(|| multiply(options, &some, &x, &mut out, repeats));
                (peak, work * repeats as f64 / time)
            })
            .collect();
        let rate = pairs.iter().fold(0.0, |m, p| p.1.max(m));
        let share = median(pairs.iter().map(|(peak, ours)| ours / peak).collect());
        print!("{rate:7.0} ({:3.0}%)", share * 100.0);
    }
    println!();
}

/// Reads memory and does as little as possible with it.
fn read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide(bytes: &[u8]) -> u64 {
            use std::arch::x86_64::*;
            let mut sums = [_mm256_setzero_si256(); 4];
            for line in bytes.as_chunks::<128>().0 {
                for (sum, part) in sums.iter_mut().zip(line.as_chunks::<32>().0) {
                    // SAFETY: a part is 32 bytes.
                    *sum = _mm256_xor_si256(*sum, unsafe { _mm256_loadu_si256(part.as_ptr().cast()) });
                }
            }
            let sum = sums.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_xor_si256(a, b));
            _mm256_extract_epi64::<0>(sum) as u64
        }
        // SAFETY: the machine has AVX2.
        return unsafe { wide(bytes) };
    }
    bytes.as_chunks().0.iter().fold(0, |sum, word| sum ^ u64::from_le_bytes(*word))
}
