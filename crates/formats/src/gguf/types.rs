//! The numbers that stand for tensor types in a GGUF file.

use crate::{Float, Format};

/// The format of ggml type `id`, or the name to refuse it by.
pub(super) fn format(id: u32) -> Result<Format, String> {
    Ok(match id {
        0 => Format::Float(Float::F32),
        1 => Format::Float(Float::F16),
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        6 => Format::Q5_0,
        7 => Format::Q5_1,
        8 => Format::Q8_0,
        10 => Format::Q2_K,
        11 => Format::Q3_K,
        12 => Format::Q4_K,
        13 => Format::Q5_K,
        14 => Format::Q6_K,
        20 => Format::IQ4_NL,
        23 => Format::IQ4_XS,
        30 => Format::Float(Float::BF16),
        39 => Format::MXFP4,
        other => {
            return Err(UNSUPPORTED
                .iter()
                .find(|(id, _)| *id == other)
                .map_or_else(|| format!("number {other}"), |(_, name)| (*name).to_owned()));
        }
    })
}

/// Types that ggml defines, or once did, and that are not read.
const UNSUPPORTED: [(u32, &str); 27] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (40, "NVFP4"),
    (41, "Q1_0"),
    (42, "Q2_0"),
];
