//! How an executor sees routed experts: it asks, and takes each as it arrives.

use turbospark_formats::{MatrixLayout, MatrixRef};

/// Where one of an expert's matrices lies in its byte slices.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertMatrix {
    /// Layout of the matrix.
    pub layout: MatrixLayout,
    /// For each part of the format, which byte slice of the expert holds it.
    pub slices: Vec<usize>,
}

/// How the experts of a layer lie in memory. The three matrices may share slices (fused gate and up).
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertLayout {
    /// [intermediate, hidden]
    pub gate: ExpertMatrix,
    /// [intermediate, hidden]
    pub up: ExpertMatrix,
    /// [hidden, intermediate]
    pub down: ExpertMatrix,
    /// Bytes of each slice.
    pub slice_bytes: Vec<usize>,
}

impl ExpertLayout {
    /// Bytes of one expert.
    pub fn bytes(&self) -> usize {
        self.slice_bytes.iter().sum()
    }

    /// The matrices of an expert whose bytes are `slices`; `None` if they do not fit.
    pub fn matrices<'a>(&'a self, slices: &[&'a [u8]]) -> Option<ExpertRef<'a>> {
        let matrix = |matrix: &'a ExpertMatrix| {
            let mut parts = [&[][..]; turbospark_formats::MAX_PARTS];
            for (part, &slice) in parts.iter_mut().zip(&matrix.slices) {
                *part = slices.get(slice)?;
            }
            MatrixRef::new(&matrix.layout, parts.get(..matrix.slices.len())?)
        };
        Some(ExpertRef { gate: matrix(&self.gate)?, up: matrix(&self.up)?, down: matrix(&self.down)? })
    }
}

/// The matrices of one expert, borrowed from a lease.
#[derive(Clone, Copy, Debug)]
pub struct ExpertRef<'a> {
    /// [intermediate, hidden]
    pub gate: MatrixRef<'a>,
    /// [intermediate, hidden]
    pub up: MatrixRef<'a>,
    /// [hidden, intermediate]
    pub down: MatrixRef<'a>,
}

/// The bytes behind a lease; dropping them gives the slot back.
pub trait LeasedBytes: Send {
    /// The byte slices, in the order of [`ExpertLayout::slice_bytes`].
    fn slice(&self, index: usize) -> &[u8];
}

/// One expert that stays in memory until the lease is dropped.
pub struct Lease {
    /// Which expert of the layer.
    pub expert: u32,
    bytes: Box<dyn LeasedBytes>,
}

impl Lease {
    /// A lease on `expert`.
    pub fn new(expert: u32, bytes: Box<dyn LeasedBytes>) -> Lease {
        Lease { expert, bytes }
    }

    /// A byte slice of the expert.
    pub fn slice(&self, index: usize) -> &[u8] {
        self.bytes.slice(index)
    }

    /// The expert's matrices.
    pub fn matrices<'a>(&'a self, layout: &'a ExpertLayout) -> Result<ExpertRef<'a>, ExpertError> {
        let matrix = |matrix: &'a ExpertMatrix| {
            let mut parts = [&[][..]; turbospark_formats::MAX_PARTS];
            for (part, &slice) in parts.iter_mut().zip(&matrix.slices) {
                *part = self.slice(slice);
            }
            MatrixRef::new(&matrix.layout, &parts[..matrix.slices.len()])
                .ok_or(ExpertError::Layout { expert: self.expert })
        };
        Ok(ExpertRef { gate: matrix(&layout.gate)?, up: matrix(&layout.up)?, down: matrix(&layout.down)? })
    }
}

/// Experts that were asked for; dropping it cancels what has not arrived.
pub trait ExpertRequest {
    /// The next expert: those in memory first, then in the order of arrival; `None` when all were given.
    ///
    /// Waits while nothing has arrived or no slot is free, so a holder gives leases back before it keeps more
    /// than [`ExpertSource::leases`].
    fn next(&mut self) -> Result<Option<Lease>, ExpertError>;

    /// Whether [`ExpertRequest::next`] would return without waiting.
    fn is_ready(&self) -> bool;
}

/// Turns a raw expert into the layout that an executor's kernels read; it runs when the expert is read.
pub trait ExpertPacker: Send + Sync {
    /// Name and version of the layout, as a packed store records it.
    fn id(&self) -> &'static str;

    /// Bytes of a packed expert of this raw layout.
    fn bytes(&self, raw: &ExpertLayout) -> usize;

    /// Writes the packed expert; `out` has [`ExpertPacker::bytes`] bytes and is aligned to 64.
    fn pack(&self, raw: &ExpertRef<'_>, out: &mut [u8]);

    /// Packs rows while others are still being read; none if an expert is only packed as a whole.
    fn by_rows(&self) -> Option<&dyn RowPacker> {
        None
    }
}

/// One of an expert's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertPart {
    /// [intermediate, hidden]
    Gate,
    /// [intermediate, hidden]
    Up,
    /// [hidden, intermediate]
    Down,
}

/// Packs an expert piece by piece. When every row of its matrices was packed once, in whatever pieces, the bytes are
/// those of [`ExpertPacker::pack`].
pub trait RowPacker {
    /// Rows that go together: a piece begins at a multiple of this, and ends at one or with the matrix.
    fn grain(&self) -> usize;

    /// Writes what the packed expert `out` holds of `rows`, the rows of `part` from `first` on.
    fn pack_rows(
        &self,
        raw: &ExpertLayout,
        part: ExpertPart,
        first: usize,
        rows: &MatrixRef<'_>,
        out: &mut [u8],
    );
}

/// Where routed experts come from.
pub trait ExpertSource: Send + Sync {
    /// How the experts of `layer` (an index into [`crate::Program::expert_layers`]) lie in memory.
    fn layout(&self, layer: usize) -> &ExpertLayout;

    /// The packed layout that leases have as their one slice; none if they hold the raw slices of
    /// [`ExpertSource::layout`].
    fn packing(&self) -> Option<&str> {
        None
    }

    /// Starts reading experts and returns at once. Ids are distinct; they may be more than there are slots.
    fn begin<'a>(&'a self, layer: usize, ids: &[u32]) -> Result<Box<dyn ExpertRequest + 'a>, ExpertError>;

    /// Experts that may be wanted soon; may be ignored.
    fn hint(&self, _layer: usize, _ids: &[u32]) {}

    /// Most leases that may be kept at a time.
    fn leases(&self) -> usize;
}

/// An expert that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ExpertError {
    /// A layer or an expert that the source does not have.
    #[error("layer {layer} has no expert {expert}: it has {count}")]
    Unknown {
        /// Index of the expert layer.
        layer: usize,
        /// The id asked for.
        expert: u32,
        /// Experts of the layer.
        count: usize,
    },
    /// Experts packed for another executor.
    #[error("the executor reads experts as {wanted}, the source gives {found}")]
    Packing {
        /// Layout the executor reads.
        wanted: &'static str,
        /// Layout of the source.
        found: String,
    },
    /// A packed expert that has another size than its layout.
    #[error(
        "packed experts of layer {layer} have {found} bytes, {packing} asks for {expected}; pack the model again"
    )]
    PackedSize {
        /// Model layer.
        layer: usize,
        /// Bytes in the store.
        found: usize,
        /// Bytes of the layout.
        expected: usize,
        /// The layout.
        packing: &'static str,
    },
    /// Reads that cannot be checked.
    #[error("the source of experts has no digests that reads could be compared with")]
    NoDigests,
    /// Bytes that do not fit the layout.
    #[error("expert {expert} does not have the bytes its layout asks for")]
    Layout {
        /// The expert.
        expert: u32,
    },
    /// A stack in the checkpoint that is not as the program needs it.
    #[error("experts {name}: {reason}")]
    Tensor {
        /// Canonical tensor name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Memory that the system does not give.
    #[error("{bytes} bytes of memory for experts: {error}")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// What the system says.
        error: std::io::Error,
    },
    /// A budget that is too small to run at all.
    #[error("{budget} bytes are too few for slots of experts: the least that works is {least}")]
    Budget {
        /// Bytes given.
        budget: usize,
        /// Bytes needed.
        least: usize,
    },
    /// A file that cannot be opened for reading experts, or a reader that the system does not have.
    #[error("opening {path} to read experts: {error}")]
    Open {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A read from disk failed.
    #[error("reading expert {expert} of layer {layer} from {path}: {error}")]
    Read {
        /// Model layer.
        layer: usize,
        /// The expert.
        expert: u32,
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
}
