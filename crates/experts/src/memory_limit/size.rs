use std::fmt;
use std::str::FromStr;

use super::MemoryLimit;

/// An amount of memory as an option spells it: `8GiB`, `50%` or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum MemorySize {
    /// What the control group and the system leave, less [`MemoryLimit::reserve`].
    #[default]
    Auto,
    /// A number of bytes.
    Bytes(u64),
    /// A share, between 0 and 100, of [`MemoryLimit::most`].
    Percent(f64),
}

/// A size that cannot be understood or found out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MemorySizeError {
    /// Not a size.
    #[error("{0} is not an amount of memory: write bytes, 8GiB, 500MB, 50% or auto")]
    Syntax(String),
    /// A share outside 0 to 100.
    #[error("{0} is not a share of the memory: it must be above 0% and at most 100%")]
    Percent(String),
    /// The system does not say how much memory it has.
    #[error("how much memory there is cannot be found out on this system: give a size such as 8GiB")]
    Unknown,
}

impl MemorySize {
    /// In bytes. `limit` is what [`MemoryLimit::read`] says; a number of bytes does not need it.
    pub fn bytes(self, limit: Option<&MemoryLimit>) -> Result<u64, MemorySizeError> {
        match self {
            MemorySize::Bytes(bytes) => Ok(bytes),
            MemorySize::Auto => Ok(limit.ok_or(MemorySizeError::Unknown)?.auto()),
            MemorySize::Percent(share) => {
                let most = limit.ok_or(MemorySizeError::Unknown)?.most();
                Ok((most as f64 * (share / 100.0)) as u64)
            }
        }
    }
}

/// Units of 1024; a single letter means the same.
const BINARY: [(&str, u32); 8] =
    [("kib", 10), ("mib", 20), ("gib", 30), ("tib", 40), ("k", 10), ("m", 20), ("g", 30), ("t", 40)];

/// Units of 1000.
const DECIMAL: [(&str, u64); 4] =
    [("kb", 1_000), ("mb", 1_000_000), ("gb", 1_000_000_000), ("tb", 1_000_000_000_000)];

impl FromStr for MemorySize {
    type Err = MemorySizeError;

    fn from_str(text: &str) -> Result<MemorySize, MemorySizeError> {
        let syntax = || MemorySizeError::Syntax(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        if lower == "auto" {
            return Ok(MemorySize::Auto);
        }
        let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(split);
        let unit = unit.trim();
        if unit == "%" {
            let share: f64 = number.parse().map_err(|_| syntax())?;
            let valid = share > 0.0 && share <= 100.0;
            return if valid {
                Ok(MemorySize::Percent(share))
            } else {
                Err(MemorySizeError::Percent(text.to_owned()))
            };
        }
        let binary = BINARY.iter().find(|(name, _)| *name == unit).map(|&(_, shift)| 1u64 << shift);
        let decimal = DECIMAL.iter().find(|(name, _)| *name == unit).map(|&(_, factor)| factor);
        let plain = matches!(unit, "" | "b").then_some(1);
        let factor = binary.or(decimal).or(plain).ok_or_else(syntax)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(MemorySize::Bytes).ok_or_else(syntax);
        }
        let bytes = number.parse::<f64>().map_err(|_| syntax())? * factor as f64;
        let valid = bytes.is_finite() && bytes < u64::MAX as f64;
        if valid { Ok(MemorySize::Bytes(bytes as u64)) } else { Err(syntax()) }
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemorySize::Auto => f.write_str("auto"),
            MemorySize::Bytes(bytes) => f.write_str(&format_bytes(*bytes)),
            MemorySize::Percent(share) => write!(f, "{share}%"),
        }
    }
}

/// Bytes for people: `1.5 GiB`.
pub fn format_bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|&(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => {
            let value = bytes as f64 / (1u64 << shift) as f64;
            if value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
        }
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let bytes = |text: &str| match text.parse() {
            Ok(MemorySize::Bytes(bytes)) => Some(bytes),
            _ => None,
        };
        assert_eq!(bytes("8GiB"), Some(8 << 30));
        assert_eq!(bytes("8g"), Some(8 << 30));
        assert_eq!(bytes(" 1.5 MiB"), Some(3 << 19));
        assert_eq!(bytes("500MB"), Some(500_000_000));
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("0"), Some(0));
        assert_eq!("50%".parse(), Ok(MemorySize::Percent(50.0)));
        assert_eq!("AUTO".parse(), Ok(MemorySize::Auto));
        for wrong in ["", "GiB", "-1GiB", "8 furlongs", "1.2.3G", "99999999999TiB", "1e5", "NaN%", "½G"] {
            assert!(wrong.parse::<MemorySize>().is_err(), "{wrong}");
        }
        for wrong in ["0%", "101%"] {
            assert!(matches!(wrong.parse::<MemorySize>(), Err(MemorySizeError::Percent(_))));
        }
    }

    #[test]
    fn shares_are_of_the_limit() {
        let limit = MemoryLimit { total: 8 << 30, free: 4 << 30, cgroup: None };
        assert_eq!(MemorySize::Percent(25.0).bytes(Some(&limit)), Ok(2 << 30));
        assert_eq!(MemorySize::Bytes(5).bytes(None), Ok(5));
        assert_eq!(MemorySize::Auto.bytes(None), Err(MemorySizeError::Unknown));
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(format_bytes(1000), "1000 bytes");
        assert_eq!(format_bytes(3 << 29), "1.5 GiB");
        assert_eq!(format_bytes(200 << 20), "200 MiB");
        assert_eq!(MemorySize::Bytes(8 << 30).to_string(), "8.0 GiB");
    }
}
