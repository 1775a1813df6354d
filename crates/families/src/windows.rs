//! Which layers see only the last positions.

use serde::{Serialize, Serializer};

use crate::FamilyError;
use crate::field::Field;
use crate::source::{MAX_LAYERS, Source};
use crate::trunk::MAX_CONTEXT;

/// Which layers see only a window, and how wide it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Windows {
    /// Positions seen, the token itself included.
    pub sliding_window: Option<usize>,
    #[serde(serialize_with = "indices")]
    pub sliding_layers: Vec<bool>,
}

impl Windows {
    /// The window's width, if one is given; GGUF may say 0 for none.
    pub fn width(source: &Source) -> Result<Option<usize>, FamilyError> {
        let field = source.find("sliding_window", "attention.sliding_window")?;
        let field = field.filter(|width| !source.is_gguf() || width.integer(0, 0).is_err());
        field.map(|width| width.integer(1, MAX_CONTEXT)).transpose()
    }

    /// Without a window, no layer may be said to have one.
    pub fn none(source: &Source, layers: usize) -> Result<Windows, FamilyError> {
        match source.find("layer_types", "")? {
            Some(types) if types.list(layers)?.iter().any(|kind| slides(kind) != Ok(false)) => {
                Err(types.unexpected("full_attention only, as there is no sliding_window"))
            }
            _ => Ok(Windows { sliding_window: None, sliding_layers: vec![false; layers] }),
        }
    }

    /// Every layer slides if a window is given (Mistral).
    pub fn everywhere(source: &Source, layers: usize) -> Result<Windows, FamilyError> {
        match Windows::width(source)? {
            Some(window) => Windows::of(window, source, vec![true; layers]),
            None => Windows::none(source, layers),
        }
    }

    /// The layers from max_window_layers on slide, if use_sliding_window says so (Qwen).
    pub fn upper_layers(source: &Source, layers: usize) -> Result<Windows, FamilyError> {
        if !source.find_flag("use_sliding_window", "")?.unwrap_or(false) {
            return Windows::none(source, layers);
        }
        let window = source.field("sliding_window", "")?.integer(1, MAX_CONTEXT)?;
        let first = source.field("max_window_layers", "")?.integer(0, MAX_LAYERS)?;
        Windows::of(window, source, (0..layers).map(|i| i >= first).collect())
    }

    /// layer_types decides where it is given.
    fn of(window: usize, source: &Source, otherwise: Vec<bool>) -> Result<Windows, FamilyError> {
        let sliding_layers = match source.find("layer_types", "")? {
            Some(types) => types.list(otherwise.len())?.iter().map(slides).collect::<Result<_, _>>()?,
            None => otherwise,
        };
        Ok(Windows { sliding_window: Some(window), sliding_layers })
    }

    /// The window, and the layers that have it from their types or the pattern; where the file says neither, every
    /// `period`-th layer sees all.
    pub fn read(source: &Source, layers: usize, period: usize) -> Result<Windows, FamilyError> {
        let sliding_layers = sliding_layers(source, layers, Some(period))?;
        let window = sliding_layers.contains(&true);
        let missing = || source.missing("sliding_window", "attention.sliding_window");
        let width = || Windows::width(source)?.ok_or_else(missing);
        Ok(Windows { sliding_window: window.then(width).transpose()?, sliding_layers })
    }

    pub fn at(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| self.sliding_layers[layer])
    }
}

/// For each layer whether it slides.
pub(crate) fn sliding_layers(
    source: &Source,
    layers: usize,
    period: Option<usize>,
) -> Result<Vec<bool>, FamilyError> {
    if let Some(types) = source.find("layer_types", "")? {
        return types.list(layers)?.iter().map(slides).collect();
    }
    let (config, gguf) =
        ("sliding_window_pattern|_sliding_window_pattern", "attention.sliding_window_pattern");
    let period = match source.find(config, gguf)? {
        Some(pattern) if pattern.is_list() => {
            return pattern.list(layers)?.iter().map(|one| one.flag()).collect();
        }
        Some(pattern) => pattern.integer(1, MAX_LAYERS)?,
        None => period.ok_or_else(|| source.missing("layer_types", gguf))?,
    };
    Ok((1..=layers).map(|i| i % period != 0).collect())
}

fn slides(kind: &Field) -> Result<bool, FamilyError> {
    match kind.text()? {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        _ => Err(kind.unexpected("sliding_attention or full_attention")),
    }
}

/// As the numbers of the layers.
pub(crate) fn indices<S: Serializer>(layers: &[bool], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(layers.iter().enumerate().filter(|(_, slides)| **slides).map(|(i, _)| i))
}
