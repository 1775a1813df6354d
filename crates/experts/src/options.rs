//! What can be chosen when experts are streamed.

use std::fmt;
use std::str::FromStr;

use crate::policy::PolicyKind;
use crate::reader::ReaderKind;

/// When hints are read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Prefetch {
    /// While the disk is idle for a good part of the time.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl fmt::Display for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Prefetch::Auto => "auto",
            Prefetch::On => "on",
            Prefetch::Off => "off",
        })
    }
}

/// A word that is not a prefetch mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("prefetch cannot be {0}: it is auto, on or off")]
pub struct UnknownPrefetch(String);

impl FromStr for Prefetch {
    type Err = UnknownPrefetch;

    fn from_str(name: &str) -> Result<Prefetch, UnknownPrefetch> {
        match name {
            "auto" => Ok(Prefetch::Auto),
            "on" => Ok(Prefetch::On),
            "off" => Ok(Prefetch::Off),
            _ => Err(UnknownPrefetch(name.to_owned())),
        }
    }
}

/// How experts are streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Bytes for slots and for what reading into them takes.
    pub budget: usize,
    /// Who leaves when a slot is needed.
    pub policy: PolicyKind,
    /// How files are read.
    pub reader: ReaderKind,
    /// Reading threads, each with one expert at a time; at least one.
    pub workers: usize,
    /// When hints are read ahead.
    pub prefetch: Prefetch,
    /// Whether each expert is compared with its digest as it is read; for packed stores.
    pub verify: bool,
}

impl StreamOptions {
    /// Reading threads that keep a disk busy, as measured: two, and a third where they also pack what they read.
    pub fn workers(packs: bool) -> usize {
        if packs { 3 } else { 2 }
    }

    /// A budget, and the default of everything else.
    pub fn new(budget: usize) -> StreamOptions {
        StreamOptions {
            budget,
            policy: PolicyKind::default(),
            reader: ReaderKind::default(),
            workers: StreamOptions::workers(false),
            prefetch: Prefetch::default(),
            verify: false,
        }
    }
}
