//! Canonical names: what each tensor of a file is, by its name there.

pub(crate) mod gguf;
pub(crate) mod hugging_face;

/// What a tensor of a file becomes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    /// A vector or matrix of that name.
    Whole(String),
    /// A matrix or vector whose rows are heads of `head` rows with rotary pairs side by side.
    PairedHeads { name: String, head: usize },
    /// The experts' matrices [experts, rows, columns] or vectors [experts, rows]. Where `transposed`, plain
    /// floats are stored [experts, columns, rows].
    Stack { name: String, transposed: bool },
    /// The experts' gate and up rows in one: `experts`.gate_proj.`leaf` and `experts`.up_proj.`leaf`.
    GateUp { experts: String, leaf: &'static str, order: GateUpOrder },
    /// The matrix of one expert.
    Member { stack: String, expert: usize },
    /// Not needed to run the language model, or not known.
    Skip(&'static str),
}

/// How gate and up rows share a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum GateUpOrder {
    /// All gate rows, then all up rows.
    Halves,
    /// Gate and up rows in turn; plain floats are stored transposed (gpt-oss).
    Interleaved,
}

/// The reason given for a tensor whose name no rule knows.
pub(crate) const UNKNOWN: &str = "unknown name";

/// Splits "12.rest" into the number and the rest.
fn numbered(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.split_once('.')?;
    // A plain parse would take "+1" and "01", and two names would then be one tensor.
    let canonical = number == "0" || !number.starts_with(['0', '+']);
    Some((number.parse().ok().filter(|_| canonical)?, rest))
}
