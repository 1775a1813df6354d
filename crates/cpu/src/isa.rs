//! Which vector instructions the kernels use.

use std::fmt;

/// An instruction set that this machine has: a value of any other cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Level);

/// The instruction sets that there are kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Portable code, which defines the results of all others.
    Scalar,
    /// aarch64 with the dot product extension.
    Neon,
    /// x86-64 with AVX2, FMA, F16C and BMI2.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL, VNNI and VBMI.
    Avx512,
}

/// All levels, the slowest first.
const LEVELS: [Level; 4] = [Level::Scalar, Level::Neon, Level::Avx2, Level::Avx512];

impl Level {
    fn available(self) -> bool {
        match self {
            Level::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vbmi")
                    && Level::Avx2.available()
            }
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The spelling of the option.
    pub fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Neon => "neon",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

impl Isa {
    /// The definition of every kernel, which runs anywhere.
    pub const SCALAR: Isa = Isa(Level::Scalar);

    /// The fastest that the machine has.
    pub fn detect() -> Isa {
        Isa::all().last().unwrap_or(Isa::SCALAR)
    }

    /// All that the machine has, the slowest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Isa> {
        LEVELS.into_iter().filter(|level| level.available()).map(Isa)
    }

    /// The instruction set of this name, if the machine has it.
    pub fn named(name: &str) -> Option<Isa> {
        Isa::all().find(|isa| isa.0.name() == name)
    }

    /// Which one this is.
    pub fn level(self) -> Level {
        self.0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}
