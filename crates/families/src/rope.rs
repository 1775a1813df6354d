//! Rotary parameters in all their spellings.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::Value;
use turbospark_program::{RopeScaling, RopeTable, YarnScaling};

use crate::field::Field;
use crate::source::Source;
use crate::{FamilyError, YarnRounding};

/// A tensor of GGUF files.
pub(crate) const DIVISORS: &str = "rope_freqs.weight";

/// A GGUF writes this divisor for pairs that stay as they are.
const STILL: f32 = 1e30;

/// Base and stretching of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    pub base: f64,
    pub scaling: RopeScaling,
}

/// What a family knows about its rotary parameters where a file says nothing.
#[derive(Clone, Copy)]
pub(crate) struct RopeDefaults {
    /// The base, if the family has one.
    pub base: Option<f64>,
    /// Whether YaRN rounds the ends of its ramp.
    pub truncate: bool,
}

/// Of most families: the base must be given.
pub(crate) const PLAIN: RopeDefaults = RopeDefaults { base: None, truncate: true };

impl Rope {
    /// The one rotary embedding of a model whose heads are `head` wide.
    pub fn read(
        source: &Source,
        head: usize,
        defaults: RopeDefaults,
        rounding: YarnRounding,
    ) -> Result<Rope, FamilyError> {
        if source.is_gguf() {
            return Rope::read_gguf(source, head, defaults, rounding);
        }
        whole_head(source.find("partial_rotary_factor", "")?)?;
        let base = source.find_number("rope_theta", "")?.or(defaults.base);
        let parameters = match source.find("rope_parameters", "")? {
            Some(parameters) => Some(parameters),
            None => source.find("rope_scaling", "")?,
        };
        match parameters {
            Some(parameters) if parameters.members()?.values().any(Value::is_object) => {
                Err(parameters.unexpected("one set of parameters for all layers"))
            }
            Some(parameters) => Rope::read_parameters(&parameters, base, defaults, rounding),
            None => {
                let base = base.ok_or_else(|| source.missing("rope_theta", ""))?;
                Ok(Rope { base, scaling: RopeScaling::None })
            }
        }
    }

    /// The rotary embedding of the layers of one type, where config.json gives them apart; the base may be that of
    /// an older key.
    pub fn of_layer_type(
        source: &Source,
        kind: &str,
        base: &str,
        rounding: YarnRounding,
    ) -> Result<Option<Rope>, FamilyError> {
        let Some(parameters) = source.find("rope_parameters", "")? else { return Ok(None) };
        let Some(own) = parameters.member(kind)? else { return Ok(None) };
        let base = source.find_number(base, "")?;
        Rope::read_parameters(&own, base, PLAIN, rounding).map(Some)
    }

    /// One object of rope_parameters or rope_scaling; `base` is rope_theta's value outside it.
    pub fn read_parameters(
        parameters: &Field,
        base: Option<f64>,
        defaults: RopeDefaults,
        rounding: YarnRounding,
    ) -> Result<Rope, FamilyError> {
        let base = match parameters.member("rope_theta")? {
            Some(theta) => theta.positive()?,
            None => match base {
                Some(base) => base,
                None => parameters.required("rope_theta")?.positive()?,
            },
        };
        let number = |name| parameters.required(name)?.positive();
        let optional = |name| parameters.member(name)?.map(|field| field.positive()).transpose();
        let kind = match parameters.member("rope_type")? {
            Some(kind) => Some(kind),
            None => parameters.member("type")?,
        };
        let kind = kind.as_ref();
        let name = kind.map(|kind| kind.text()).transpose()?.unwrap_or("default");
        if name != "proportional" {
            whole_head(parameters.member("partial_rotary_factor")?)?;
        }
        let scaling = match name {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: number("factor")? },
            "llama3" => {
                let [factor, low, high, original] =
                    ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
                        .map(number);
                let (low, high) = (low?, high?);
                if low >= high {
                    return Err(parameters.unexpected("a low_freq_factor below its high_freq_factor"));
                }
                RopeScaling::Llama3 { factor: factor?, low, high, original: original? }
            }
            "yarn" => {
                let factor = number("factor")?;
                let (mscale, all) = (optional("mscale")?, optional("mscale_all_dim")?);
                let amplitude = match (optional("attention_factor")?, mscale, all) {
                    (Some(given), _, _) => given,
                    (None, Some(mscale), Some(all)) => amplitude(factor, mscale) / amplitude(factor, all),
                    (None, _, _) => amplitude(factor, 1.0),
                };
                let truncate = parameters.member("truncate")?.map(|field| field.flag()).transpose()?;
                RopeScaling::Yarn(YarnScaling {
                    factor,
                    beta_fast: optional("beta_fast")?.unwrap_or(32.0),
                    beta_slow: optional("beta_slow")?.unwrap_or(1.0),
                    original: number("original_max_position_embeddings")?,
                    truncate: rounding == YarnRounding::Rounded || truncate.unwrap_or(defaults.truncate),
                    amplitude: Some(amplitude),
                })
            }
            "proportional" => {
                let fraction = number("partial_rotary_factor")?;
                if fraction > 1.0 {
                    return Err(parameters.required("partial_rotary_factor")?.unexpected("at most 1"));
                }
                RopeScaling::Proportional { fraction }
            }
            _ => {
                let known = "default, linear, llama3, yarn or proportional";
                return Err(kind.map_or_else(|| parameters.unexpected(known), |kind| kind.unexpected(known)));
            }
        };
        Ok(Rope { base, scaling })
    }

    fn read_gguf(
        source: &Source,
        head: usize,
        defaults: RopeDefaults,
        rounding: YarnRounding,
    ) -> Result<Rope, FamilyError> {
        whole_gguf(source, "rope.dimension_count", head)?;
        let base = match source.find_number("", "rope.freq_base")?.or(defaults.base) {
            Some(base) => base,
            None => return Err(source.missing("", "rope.freq_base")),
        };
        if source.has(DIVISORS) {
            return Ok(Rope { base, scaling: divisors(source, head)? });
        }
        let kind = source.find("", "rope.scaling.type")?;
        let factor = || source.number("", "rope.scaling.factor");
        let scaling = match kind.as_ref().map(|kind| kind.text()).transpose()? {
            None => stretched_without_type(source)?,
            Some("none") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: factor()? },
            Some("yarn") => {
                let factor = factor()?;
                let all = source.find_number("", "rope.scaling.yarn_log_multiplier")?;
                let own = all.map_or(1.0, |all| 1.0 / amplitude(factor, all));
                let given = source.find_number("", "rope.scaling.attn_factor")?.unwrap_or(1.0);
                RopeScaling::Yarn(YarnScaling {
                    factor,
                    beta_fast: source.find_number("", "rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: source.find_number("", "rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    original: source.number("", "rope.scaling.original_context_length")?,
                    truncate: rounding == YarnRounding::Rounded || defaults.truncate,
                    amplitude: Some(amplitude(factor, 1.0) * own * given),
                })
            }
            Some(_) => {
                let field = source.field("", "rope.scaling.type")?;
                return Err(field.unexpected("none, linear or yarn"));
            }
        };
        Ok(Rope { base, scaling })
    }

    pub fn table(&self, head: usize) -> RopeTable {
        RopeTable::new(self.base, head, &self.scaling)
    }
}

/// The divisors that a GGUF stores for each pair of a head.
pub(crate) fn divisors(source: &Source, head: usize) -> Result<RopeScaling, FamilyError> {
    let name = DIVISORS;
    let wrong = || FamilyError::Tensor {
        name: name.to_owned(),
        reason: "it divides the rotary frequencies, a positive number for each pair of a head",
    };
    let fits = source.shape(name).is_some_and(|shape| shape == [head / 2]);
    let values = source.values(name).filter(|_| fits).ok_or_else(wrong)?;
    if values.iter().any(|x| x.is_nan() || *x <= 0.0) {
        return Err(wrong());
    }
    let still = |x: f32| if x >= STILL { f32::INFINITY } else { x };
    Ok(RopeScaling::Divisors(values.into_iter().map(still).collect()))
}

/// YaRN's factor on cosine and sine.
fn amplitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 }
}

/// Heads that rotate in part belong to families that are not here.
fn whole_head(partial: Option<Field>) -> Result<(), FamilyError> {
    match partial {
        Some(field) if field.positive()? != 1.0 => Err(field.unexpected("1: all of a head is rotated")),
        _ => Ok(()),
    }
}

/// A factor without a type, or under its older key, is linear.
fn stretched_without_type(source: &Source) -> Result<RopeScaling, FamilyError> {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        if let Some(factor) = source.find_number("", key)?.filter(|factor| *factor != 1.0) {
            return Ok(RopeScaling::Linear { factor });
        }
    }
    Ok(RopeScaling::None)
}

/// The same in GGUF.
pub(crate) fn whole_gguf(source: &Source, key: &str, head: usize) -> Result<(), FamilyError> {
    match source.find("", key)? {
        Some(rotated) if rotated.size()? != head => {
            Err(rotated.unexpected(format!("{head}, the width of a head")))
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Rope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "base {}", self.base)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => write!(f, ", all divided by {factor}"),
            RopeScaling::Llama3 { factor, original, .. } => write!(f, ", llama3 {factor} over {original}"),
            RopeScaling::Yarn(yarn) => {
                let ends = if yarn.truncate { ", ramp rounded" } else { "" };
                write!(f, ", yarn {} over {}{ends}", yarn.factor, yarn.original)
            }
            RopeScaling::Proportional { fraction } => write!(f, ", {fraction} of a head"),
            RopeScaling::Divisors(_) => write!(f, ", divisors from the file"),
        }
    }
}

impl Serialize for Rope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
