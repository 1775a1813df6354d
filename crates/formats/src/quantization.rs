//! What config.json says about quantised tensors.

use serde_json::{Map, Value};

use crate::names::hugging_face::unwrapped;

/// A quantisation that config.json asks for and that is not read, or that is described wrongly.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum QuantizationError {
    /// A method of Hugging Face's quantization_config.
    #[error(
        "config.json: quantization method {0} is not supported; use the model's unquantised checkpoint, or a GGUF \
         or MLX rendering of it"
    )]
    Method(String),
    /// A mode of MLX's quantization.
    #[error("config.json: quantization mode {mode} of {module} is not supported, expected affine or mxfp4")]
    Mode {
        /// The module, or "the model".
        module: String,
        /// The mode.
        mode: String,
    },
    /// Bits or group size that are not read.
    #[error("config.json: quantization of {module} has {key} {found}, expected {expected}")]
    Parameter {
        /// The module, or "the model".
        module: String,
        /// The key.
        key: &'static str,
        /// What it is.
        found: String,
        /// What it can be.
        expected: &'static str,
    },
}

/// How MLX stored a module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    Affine { bits: u8, group: u16 },
    Mxfp4,
}

/// MLX's `quantization`: a default, and modules that replace it as a whole.
#[derive(Clone, Debug)]
pub(crate) struct MlxQuantization {
    entries: Map<String, Value>,
}

impl MlxQuantization {
    /// The entry of `config`, `None` if its tensors are not quantised in MLX's way.
    pub fn of(config: &Value) -> Result<Option<MlxQuantization>, QuantizationError> {
        let text = config.get("text_config");
        for config in [Some(config), text].into_iter().flatten() {
            if let Some(Value::Object(entries)) = config.get("quantization") {
                return Ok(Some(MlxQuantization { entries: entries.clone() }));
            }
            let Some(Value::Object(entries)) = config.get("quantization_config") else { continue };
            match entries.get("quant_method") {
                None if entries.contains_key("bits") || entries.contains_key("mode") => {
                    return Ok(Some(MlxQuantization { entries: entries.clone() }));
                }
                Some(Value::String(method)) if method == "mxfp4" => {}
                Some(Value::String(method)) => return Err(QuantizationError::Method(method.clone())),
                other => {
                    let found = other.map_or_else(|| "without a name".to_owned(), Value::to_string);
                    return Err(QuantizationError::Method(found));
                }
            }
        }
        Ok(None)
    }

    /// How the module at `path` is stored; `None` if the configuration says that it is not quantised.
    pub fn mode(&self, path: &str) -> Result<Option<Mode>, QuantizationError> {
        let canonical = unwrapped(path);
        let entry = self.entries.get(path).or_else(|| self.entries.get(&canonical));
        match entry {
            None => parse(&self.entries, "the model").map(Some),
            Some(Value::Object(entry)) => parse(entry, path).map(Some),
            Some(Value::Bool(true)) => parse(&self.entries, "the model").map(Some),
            Some(Value::Bool(false) | Value::Null) => Ok(None),
            Some(other) => Err(QuantizationError::Parameter {
                module: path.to_owned(),
                key: "entry",
                found: other.to_string(),
                expected: "an object or false",
            }),
        }
    }
}

fn parse(entry: &Map<String, Value>, module: &str) -> Result<Mode, QuantizationError> {
    let wrong = |key, found: &Value, expected| QuantizationError::Parameter {
        module: module.to_owned(),
        key,
        found: found.to_string(),
        expected,
    };
    let number = |key, default: u64, allowed: &[u64], expected| match entry.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => {
            value.as_u64().filter(|n| allowed.contains(n)).ok_or_else(|| wrong(key, value, expected))
        }
    };
    match entry.get("mode") {
        None | Some(Value::Null) => {}
        Some(Value::String(mode)) if mode == "affine" => {}
        Some(Value::String(mode)) if mode == "mxfp4" => {
            number("bits", 4, &[4], "4")?;
            number("group_size", 32, &[32], "32")?;
            return Ok(Mode::Mxfp4);
        }
        Some(other) => {
            let mode = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            return Err(QuantizationError::Mode { module: module.to_owned(), mode });
        }
    }
    let bits = number("bits", 4, &[2, 3, 4, 5, 6, 8], "2, 3, 4, 5, 6 or 8")?;
    let group = number("group_size", 64, &[32, 64, 128], "32, 64 or 128")?;
    // Both are in the lists above.
    Ok(Mode::Affine { bits: bits as u8, group: group as u16 })
}
