//! How the manifest spells formats.

use crate::{Float, Format};

const PLAIN: [Format; 17] = [
    Format::Float(Float::F32),
    Format::Float(Float::F16),
    Format::Float(Float::BF16),
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q2_K,
    Format::Q3_K,
    Format::Q4_K,
    Format::Q5_K,
    Format::Q6_K,
    Format::IQ4_NL,
    Format::IQ4_XS,
    Format::MXFP4,
    Format::Mxfp4Split,
];
const FLOATS: [Float; 3] = [Float::F32, Float::F16, Float::BF16];

/// `Q4_K`, `BF16`, `MXFP4_SPLIT`, `MLX_4_64_F16` (bits, group, scales).
pub(super) fn name(format: Format) -> String {
    match format {
        Format::Float(float) => format!("{float:?}"),
        Format::Mxfp4Split => "MXFP4_SPLIT".to_owned(),
        Format::MlxAffine { bits, group, scales } => format!("MLX_{bits}_{group}_{scales:?}"),
        other => format!("{other:?}"),
    }
}

/// The format of that name.
pub(super) fn parse(text: &str) -> Option<Format> {
    if let Some(rest) = text.strip_prefix("MLX_") {
        let mut parts = rest.splitn(3, '_');
        let bits = parts.next()?.parse().ok().filter(|bits| [2, 3, 4, 5, 6, 8].contains(bits))?;
        let group = parts.next()?.parse().ok().filter(|group| [32, 64, 128].contains(group))?;
        let scales = parts.next()?;
        let scales = FLOATS.into_iter().find(|float| format!("{float:?}") == scales)?;
        return Some(Format::MlxAffine { bits, group, scales });
    }
    PLAIN.into_iter().find(|&format| name(format) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_found_by_the_names_they_have() {
        let mlx = FLOATS.map(|scales| Format::MlxAffine { bits: 4, group: 64, scales });
        for format in PLAIN.into_iter().chain(mlx) {
            assert_eq!(parse(&name(format)), Some(format));
        }
        for wrong in ["", "q4_k", "MLX_", "MLX_7_64_F16", "MLX_4_63_F16", "MLX_4_64", "MLX_4_64_F64"] {
            assert_eq!(parse(wrong), None);
        }
    }
}
