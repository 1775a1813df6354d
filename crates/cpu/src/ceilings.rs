//! What the machine gives at most, measured: reading memory, and integer multiply-adds.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use crate::isa::{Isa, Level};
use crate::options::CpuOptions;
use crate::panels::Buffer;
use crate::pool::Pool;

/// Memory that is read: far more than caches hold, in huge pages as weights are.
const MEMORY: usize = 256 << 20;
/// Bytes that a thread takes at a time, in order.
const PIECE: usize = 4 << 20;
/// Dot products that a thread takes at a time: some tens of microseconds.
const ROUNDS: usize = 4096;
/// Such takes for each thread.
const TAKES: usize = 64;
/// A reading is the best of this many: what disturbs only slows.
const TRIES: usize = 3;

/// Measures with as many threads, on the same cores, as an executor of the same options.
pub struct Ceilings {
    isa: Isa,
    pool: Pool,
    memory: Buffer,
}

impl Ceilings {
    /// Bytes that measuring takes.
    pub const BYTES: usize = MEMORY;

    /// Threads and 256 MiB of memory to measure with.
    pub fn new(options: &CpuOptions) -> std::io::Result<Ceilings> {
        Ceilings::within(options, MEMORY)
    }

    /// As [`Ceilings::new`] in less memory, at least 4 MiB and rounded down to multiples of it. What caches hold
    /// reads faster than memory.
    pub fn within(options: &CpuOptions, bytes: usize) -> std::io::Result<Ceilings> {
        let pool = Pool::new(options.threads, options.pin)?;
        let mut memory = Buffer::zeroed((bytes.min(MEMORY) / PIECE).max(1) * PIECE)?;
        // Pages that were never written are all the same page of zeros.
        memory.as_mut_slice().fill(1);
        Ok(Ceilings { isa: options.isa, pool, memory })
    }

    /// Bytes a second that all threads together read from memory.
    pub fn read(&mut self) -> f64 {
        let Ceilings { pool, memory, .. } = self;
        let memory = memory.as_slice();
        let pieces = |range: Range<usize>| &memory[range.start * PIECE..range.end * PIECE];
        let seconds = best(pool, memory.len() / PIECE, &|range| {
            black_box(read(pieces(range)));
        });
        memory.len() as f64 / seconds
    }

    /// Multiply-adds of 8-bit integers into 32-bit sums a second, all threads together, by the instructions that the
    /// kernels of this instruction set are made of.
    pub fn multiply_adds(&mut self) -> f64 {
        let level = self.isa.level();
        let takes = TAKES * self.pool.threads();
        let seconds = best(&mut self.pool, takes, &|range| range.for_each(|_| dot_products(level)));
        (takes * ROUNDS * multiply_adds_of_a_round(level)) as f64 / seconds
    }
}

fn best(pool: &mut Pool, total: usize, work: &(dyn Fn(Range<usize>) + Sync)) -> f64 {
    pool.settle_caller();
    let seconds = (0..TRIES).map(|_| {
        let start = Instant::now();
        pool.run(total, 1, &|_, range| work(range));
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::MAX, f64::min)
}

/// Reads memory and does as little as possible with it.
fn read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has AVX2.
        return unsafe { x86::read(bytes) };
    }
    let words = bytes.as_chunks::<8>().0;
    words.iter().fold(0, |sum, word| sum ^ u64::from_le_bytes(*word))
}

/// Independent sums, so that latency hides.
const SUMS: usize = 16;

fn multiply_adds_of_a_round(level: Level) -> usize {
    SUMS * match level {
        Level::Scalar => 1,
        Level::Neon => 16,
        Level::Avx2 => 32,
        Level::Avx512 => 64,
    }
}

fn dot_products(level: Level) {
    match level {
        // SAFETY: a level is only ever one that the machine has.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::dot_products_avx512() },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::dot_products_avx2() },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Level::Neon => unsafe { neon::dot_products() },
        _ => dot_products_scalar(),
    }
}

/// What the compiler makes of portable code.
fn dot_products_scalar() {
    let (a, b) = (black_box([3i8; SUMS * 64]), black_box([-5i8; SUMS * 64]));
    let mut sums = [0i32; SUMS];
    for _ in 0..ROUNDS / 64 {
        for (a, b) in black_box(&a).as_chunks::<SUMS>().0.iter().zip(b.as_chunks::<SUMS>().0) {
            for i in 0..SUMS {
                sums[i] += i32::from(a[i]) * i32::from(b[i]);
            }
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{ROUNDS, SUMS};

    #[target_feature(enable = "avx2")]
    pub fn read(bytes: &[u8]) -> u64 {
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

    /// vpdpbusd on 64 bytes.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn dot_products_avx512() {
        let (a, b) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(2)));
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    /// vpmaddubsw on 32 bytes, eight summed in 16 bits, then vpmaddwd with ones: what codes of 4 bits allow.
    #[target_feature(enable = "avx2")]
    pub fn dot_products_avx2() {
        // Products of registers alone would be taken out of the loop, so one factor comes from the nearest cache.
        let a = black_box(_mm256_set1_epi8(1));
        let b = black_box([[_mm256_set1_epi8(2); 8]; 4]);
        let ones = _mm256_set1_epi16(1);
        let mut sums = [_mm256_setzero_si256(); 4];
        for _ in 0..ROUNDS * SUMS / 32 {
            for (sum, b) in sums.iter_mut().zip(black_box(&b)) {
                let products = b.map(|b| _mm256_maddubs_epi16(a, b));
                let short = products.into_iter().fold(_mm256_setzero_si256(), |s, p| _mm256_add_epi16(s, p));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(short, ones));
            }
        }
        black_box(sums);
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;
    use std::hint::black_box;

    use super::{ROUNDS, SUMS};

    /// sdot on 16 bytes.
    #[target_feature(enable = "neon,dotprod")]
    pub fn dot_products() {
        let (a, b) = (black_box(vdupq_n_s8(1)), black_box(vdupq_n_s8(2)));
        let mut sums = [vdupq_n_s32(0); SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                // SAFETY: works on registers only; the extension is enabled for this function.
                unsafe {
                    std::arch::asm!(
                        "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                        sum = inout(vreg) *sum, a = in(vreg) a, b = in(vreg) b,
                        options(pure, nomem, nostack)
                    );
                }
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_a_rate() {
        for isa in Isa::all() {
            let mut ceilings =
                Ceilings::new(&CpuOptions { isa, threads: 2, ..CpuOptions::default() }).unwrap();
            // From the slowest emulated machine to more than any processor has.
            let (read, rate) = (ceilings.read(), ceilings.multiply_adds());
            assert!((1e6..1e13).contains(&read), "{isa}: {read} bytes a second");
            assert!((1e6..1e15).contains(&rate), "{isa}: {rate} multiply-adds a second");
        }
    }
}
