//! One use of a steering file: how, how much, where, for which rows; and the edits it comes to.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use turbospark_program::{Edit, EditKind, Program, Tap};

use super::error::{SteeringError, VectorFault};
use super::vectors::SteeringVectors;
use crate::edits::Edits;

/// What is done to a row x along the direction d, with strength s; u is d with length 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mode {
    /// x + s d
    #[default]
    Add,
    /// x - s (u . x) u: at s = 1 nothing is left along u.
    Ablate,
    /// x + s (target - u . x) u: at s = 1 the projection becomes the target.
    Clamp {
        /// The projection aimed at.
        target: f32,
    },
    /// x + s d, scaled back to the length of x.
    Renorm,
}

/// Where in a layer rows are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// The residual stream after the layer.
    #[default]
    LayerOutput,
    /// What attention adds to the stream.
    AttentionOutput,
    /// What the feed-forward part adds to the stream.
    FeedForwardOutput,
}

impl Place {
    fn tap(self, layer: usize) -> Tap {
        match self {
            Place::LayerOutput => Tap::LayerOutput(layer),
            Place::AttentionOutput => Tap::AttentionOutput(layer),
            Place::FeedForwardOutput => Tap::FeedForwardOutput(layer),
        }
    }
}

/// Rows that are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenRange {
    /// Tokens of the prompt, the last included: it brings the first token of the answer.
    Prompt,
    /// Tokens that were generated, when they are computed in their turn.
    Generated,
    /// Both.
    #[default]
    All,
}

/// One use of a steering file.
#[derive(Clone, Debug, PartialEq)]
pub struct Steer {
    /// The file.
    pub file: PathBuf,
    /// What is done.
    pub mode: Mode,
    /// How much; 0 does nothing.
    pub strength: f32,
    /// Layers, from 0 and inclusive; none is all that the file has. An empty range does nothing.
    pub layers: Option<RangeInclusive<usize>>,
    /// Only rows whose projection on u exceeds this are changed.
    pub gate: Option<f32>,
    /// Rows that are changed.
    pub tokens: TokenRange,
    /// Where in each layer.
    pub place: Place,
}

impl Steer {
    /// Adds all directions of a file, once.
    pub fn new(file: impl Into<PathBuf>) -> Steer {
        Steer {
            file: file.into(),
            mode: Mode::Add,
            strength: 1.0,
            layers: None,
            gate: None,
            tokens: TokenRange::All,
            place: Place::LayerOutput,
        }
    }

    /// Reads `FILE[:mode][:strength][:layers]` and, after it, `:gate=X`, `:tokens=prompt|generated|all`,
    /// `:at=layer|attention|feed-forward`. The file is the shortest beginning that names one, as its name may have
    /// colons.
    pub fn parse(given: &str) -> Result<Steer, SteeringError> {
        Steer::parse_with(given, |path| path.is_file())
    }

    fn parse_with(given: &str, exists: impl Fn(&Path) -> bool) -> Result<Steer, SteeringError> {
        let wrong = |reason: String| SteeringError::Spelling { given: given.to_owned(), reason };
        let ends = given.match_indices(':').map(|(at, _)| at).chain([given.len()]);
        let Some(end) = ends.into_iter().find(|&end| exists(Path::new(&given[..end]))) else {
            return Err(wrong(format!("there is no file {}", given.split(':').next().unwrap_or(given))));
        };
        let mut steer = Steer::new(&given[..end]);
        let rest = given[end..].strip_prefix(':');
        // Parts without a name come in their order; each may be left out.
        let mut next = 0;
        for part in rest.into_iter().flat_map(|rest| rest.split(':')) {
            if let Some((name, value)) = part.split_once('=')
                && name != "clamp"
            {
                steer.option(name, value).map_err(wrong)?;
            } else if next < 1 && part.starts_with(|c: char| c.is_ascii_alphabetic()) {
                steer.mode = mode(part).map_err(wrong)?;
                next = 1;
            } else if next < 2
                && let Ok(strength) = part.parse::<f32>()
            {
                if !strength.is_finite() {
                    return Err(wrong(format!("the strength {part} is not a finite number")));
                }
                steer.strength = strength;
                next = 2;
            } else if next < 3
                && let Some(layers) = layer_range(part)
            {
                steer.layers = Some(layers);
                next = 3;
            } else {
                return Err(wrong(format!(
                    "{part:?} is out of place: expected FILE[:mode][:strength][:layers], as in \
                     v.gguf:add:1.5:10-20, then gate=, tokens= or at="
                )));
            }
        }
        Ok(steer)
    }

    /// Sets what has a name: gate, tokens or at.
    pub fn option(&mut self, name: &str, value: &str) -> Result<(), String> {
        match (name, value) {
            ("gate", _) => {
                let gate = value.parse::<f32>().ok().filter(|gate| !gate.is_nan());
                self.gate = Some(gate.ok_or_else(|| format!("the gate {value:?} is not a number"))?);
            }
            ("tokens", "prompt") => self.tokens = TokenRange::Prompt,
            ("tokens", "generated") => self.tokens = TokenRange::Generated,
            ("tokens", "all") => self.tokens = TokenRange::All,
            ("tokens", _) => return Err(format!("tokens={value}: expected prompt, generated or all")),
            ("at", "layer") => self.place = Place::LayerOutput,
            ("at", "attention") => self.place = Place::AttentionOutput,
            ("at", "feed-forward") => self.place = Place::FeedForwardOutput,
            ("at", _) => return Err(format!("at={value}: expected layer, attention or feed-forward")),
            _ => return Err(format!("there is no option {name}=; there are gate=, tokens= and at=")),
        }
        Ok(())
    }

    /// Reads the file and adds its edits to `edits`, which go before them.
    pub fn add_to(&self, edits: &mut Edits, model: &str, program: &Program) -> Result<(), SteeringError> {
        let vectors = SteeringVectors::load(&self.file)?;
        self.add_vectors(&vectors, edits, model, program).map_err(SteeringError::content(&self.file))
    }

    /// As [`Steer::add_to`] with vectors that were loaded or made before; the file is not looked at.
    pub fn add_vectors(
        &self,
        vectors: &SteeringVectors,
        edits: &mut Edits,
        model: &str,
        program: &Program,
    ) -> Result<(), VectorFault> {
        vectors.check_model(model, program.layers(), program.hidden())?;
        let end = program.layers().saturating_sub(1);
        let layers: Vec<usize> = match &self.layers {
            None => vectors.directions().map(|(layer, _)| layer).collect(),
            Some(range) if !range.is_empty() && *range.end() > end => {
                return Err(VectorFault::Range { first: *range.start(), last: *range.end(), end });
            }
            Some(range) => range.clone().collect(),
        };
        for layer in layers {
            let direction = vectors
                .direction(layer)
                .ok_or_else(|| VectorFault::Missing { layer, have: vectors.layer_list() })?;
            let edit = self.edit(layer, direction)?;
            match program.tap_width(edit.tap) {
                Some(width) if width == direction.len() => {}
                _ => return Err(VectorFault::Tap(edit.tap)),
            }
            if self.tokens != TokenRange::Generated {
                edits.prompt.push(edit.clone());
            }
            if self.tokens != TokenRange::Prompt {
                edits.generated.push(edit);
            }
        }
        Ok(())
    }

    fn edit(&self, layer: usize, direction: &Arc<[f32]>) -> Result<Edit, VectorFault> {
        let norm = direction.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let unit = || match norm > 0.0 {
            true => Ok(direction.iter().map(|&x| (f64::from(x) / norm) as f32).collect::<Arc<[f32]>>()),
            false => Err(VectorFault::Zero(layer)),
        };
        let (kind, direction, length) = match self.mode {
            Mode::Add => (EditKind::Add, direction.clone(), norm),
            Mode::Renorm => (EditKind::AddKeepingNorm, direction.clone(), norm),
            Mode::Ablate => (EditKind::Ablate, unit()?, 1.0),
            Mode::Clamp { target } => (EditKind::Clamp { target }, unit()?, 1.0),
        };
        if self.gate.is_some() && norm == 0.0 {
            return Err(VectorFault::Zero(layer));
        }
        // An edit's gate is on d . x, ours on u . x.
        let gate = self.gate.map(|gate| (f64::from(gate) * length) as f32);
        Ok(Edit { tap: self.place.tap(layer), kind, direction, strength: self.strength, gate })
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match (text, text.strip_prefix("clamp=")) {
        ("add", _) => Ok(Mode::Add),
        ("ablate", _) => Ok(Mode::Ablate),
        ("renorm", _) => Ok(Mode::Renorm),
        (_, Some(target)) => match target.parse::<f32>() {
            Ok(target) if target.is_finite() => Ok(Mode::Clamp { target }),
            _ => Err(format!("the target of {text:?} is not a finite number")),
        },
        ("clamp", _) => Err("clamp needs the projection it aims at: clamp=2.5".to_owned()),
        _ => Err(format!("unknown mode {text:?}: there are add, ablate, clamp=TARGET and renorm")),
    }
}

/// `a-b` or `a`.
pub(super) fn layer_range(text: &str) -> Option<RangeInclusive<usize>> {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?;
    match text.split_once('-') {
        Some((first, last)) => Some(number(first)?..=number(last)?),
        None => number(text).map(|layer| layer..=layer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &str) -> Result<Steer, String> {
        let files = ["v.gguf", "C:\\v.gguf", "a:b.npz"];
        let exists = |path: &Path| files.iter().any(|file| Path::new(file) == path);
        Steer::parse_with(given, exists).map_err(|error| error.to_string())
    }

    #[test]
    fn parts_may_be_left_out() {
        let new = Steer::new("v.gguf");
        assert_eq!(parse("v.gguf").unwrap(), new);
        let full = Steer { strength: 1.5, layers: Some(10..=20), ..new.clone() };
        assert_eq!(parse("v.gguf:add:1.5:10-20").unwrap(), full);
        assert_eq!(parse("v.gguf:1.5:10-20").unwrap(), full);
        assert_eq!(parse("v.gguf:10-20").unwrap(), Steer { strength: 1.0, ..full.clone() });
        assert_eq!(
            parse("v.gguf:-2:3").unwrap(),
            Steer { strength: -2.0, layers: Some(3..=3), ..new.clone() }
        );
        let clamp = Steer { mode: Mode::Clamp { target: -2.5 }, gate: Some(0.5), ..new.clone() };
        assert_eq!(parse("v.gguf:clamp=-2.5:gate=0.5").unwrap(), clamp);
        let place = Steer { tokens: TokenRange::Generated, place: Place::AttentionOutput, ..new };
        assert_eq!(parse("v.gguf:tokens=generated:at=attention").unwrap(), place);
    }

    #[test]
    fn files_may_have_colons() {
        assert_eq!(parse("C:\\v.gguf:ablate").unwrap().mode, Mode::Ablate);
        assert_eq!(parse("a:b.npz:2").unwrap().file, Path::new("a:b.npz"));
    }

    #[test]
    fn errors_name_the_problem() {
        for (given, part) in [
            ("w.gguf:add", "no file w.gguf"),
            ("v.gguf:push:1", "unknown mode \"push\""),
            ("v.gguf:clamp", "clamp=2.5"),
            ("v.gguf:clamp=x", "target"),
            ("v.gguf:add:inf", "not a finite number"),
            ("v.gguf:add:1:2-x", "\"2-x\" is out of place"),
            ("v.gguf:1-2:add", "\"add\" is out of place"),
            ("v.gguf:tokens=some", "prompt, generated or all"),
            ("v.gguf:gate=NaN", "gate"),
            ("v.gguf:door=1", "no option door="),
        ] {
            let error = parse(given).unwrap_err();
            assert!(error.contains(part) && error.contains(given), "{given}: {error}");
        }
    }
}
