//! Choices of the executor.

use crate::isa::Isa;
use crate::topology;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// Rounded to f16.
    #[default]
    F16,
    /// As they are.
    F32,
    /// 8-bit integers with a scale for every 32 elements of a head.
    Q8,
}

/// Options of [`crate::CpuExecutor::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller's included.
    pub threads: usize,
    /// Keep workers on their cores, and the caller off them; only if there is a core for each.
    pub pin: bool,
    /// Instruction set.
    pub isa: Isa,
    /// How keys and values are kept.
    pub kv: KvFormat,
    /// Run ops that stand side by side in one pass. The bits are the same without.
    pub fuse: bool,
    /// Memory is short: what was read of a mapped file to be packed leaves the page cache too.
    pub evict: bool,
    /// Tell the source of experts what the next layer will probably want.
    pub predict: bool,
}

impl Default for CpuOptions {
    /// All physical cores that the process may use, the best instruction set, f16 keys and values.
    fn default() -> CpuOptions {
        CpuOptions {
            threads: topology::default_threads(),
            pin: true,
            isa: Isa::detect(),
            kv: KvFormat::default(),
            fuse: true,
            evict: false,
            predict: false,
        }
    }
}
