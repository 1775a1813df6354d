//! What models have in common around their layers, and the sizes that describe it.

use serde::{Serialize, Serializer};
use turbospark_program::{BuildError, Builder, Program, Reg, Tap, Weight};

use crate::FamilyError;
use crate::source::{Field, MAX_LAYERS, Source};

const EMBEDDING: &str = "model.embed_tokens.weight";
const MAX_VOCABULARY: usize = 1 << 24;
const MAX_CONTEXT: usize = 1 << 31;

/// Sizes of the residual stream and its two ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Trunk {
    pub layers: usize,
    pub hidden: usize,
    pub vocabulary: usize,
    pub context: usize,
    /// Of the norms.
    pub eps: f32,
    /// Whether the head is the embedding table.
    pub tied: bool,
}

impl Trunk {
    pub fn read(source: &Source) -> Result<Trunk, FamilyError> {
        Ok(Trunk {
            layers: source.field("num_hidden_layers", "block_count")?.integer(1, MAX_LAYERS)?,
            hidden: source.size("hidden_size", "embedding_length")?,
            vocabulary: vocabulary(source)?,
            context: source.field("max_position_embeddings", "context_length")?.integer(1, MAX_CONTEXT)?,
            eps: source.number("rms_norm_eps", "attention.layer_norm_rms_epsilon")? as f32,
            tied: tied(source)?,
        })
    }

    pub fn builder(&self) -> Builder {
        Builder::new(self.hidden, self.context)
    }

    fn embedding(&self, b: &mut Builder) -> Weight {
        b.weight(EMBEDDING, &[self.vocabulary, self.hidden])
    }

    /// The residual stream before the first layer.
    pub fn embed(&self, b: &mut Builder, scale: f32) -> Reg {
        let table = self.embedding(b);
        let x = b.embed(table, scale);
        b.tap(x, Tap::Embedding)
    }

    /// logits = norm(x) head^T, of the rows that want them.
    pub fn logits(&self, b: &mut Builder, x: Reg, norm_offset: f32) -> Reg {
        let x = b.select_rows(x);
        let weight = b.weight("model.norm.weight", &[self.hidden]);
        let x = b.rms_norm_groups(x, Some(weight), self.eps, self.hidden, norm_offset);
        let head = match self.tied {
            true => self.embedding(b),
            false => b.weight("lm_head.weight", &[self.vocabulary, self.hidden]),
        };
        b.linear(x, head, None)
    }

    /// The program of a family without further ado at its ends.
    pub fn program(
        &self,
        mut b: Builder,
        mut layer: impl FnMut(&mut Builder, usize, Reg) -> Reg,
    ) -> Result<Program, BuildError> {
        let mut x = self.embed(&mut b, 1.0);
        for i in 0..self.layers {
            x = layer(&mut b, i, x);
        }
        let logits = self.logits(&mut b, x, 0.0);
        b.finish(logits, self.layers)
    }
}

/// Rows of the embedding: the config's word, or in a GGUF, whose key may count the tokenizer's, the tensor's.
fn vocabulary(source: &Source) -> Result<usize, FamilyError> {
    if let Some(size) = source.find("vocab_size", "")? {
        return size.integer(1, MAX_VOCABULARY);
    }
    let rows = source.shape(EMBEDDING).filter(|shape| shape.len() == 2).map(|shape| shape[0]);
    rows.filter(|rows| (1..=MAX_VOCABULARY).contains(rows)).ok_or_else(|| FamilyError::Tensor {
        name: EMBEDDING.to_owned(),
        reason: "its rows are the vocabulary",
    })
}

fn tied(source: &Source) -> Result<bool, FamilyError> {
    let key = "tie_word_embeddings";
    let said = match source.find(key, "")? {
        Some(field) => Some(field),
        None => source.find_outside(key)?,
    };
    match said {
        Some(field) => field.flag(),
        None => Ok(!source.has("lm_head.weight")),
    }
}

/// Attention heads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    /// Width of one.
    pub head_width: usize,
}

impl Heads {
    /// Where `derived`, a head without its own width is the residual stream's share.
    pub fn read(source: &Source, hidden: usize, derived: bool) -> Result<Heads, FamilyError> {
        let heads = source.size("num_attention_heads", "attention.head_count")?;
        let (config, gguf) = ("head_dim", "attention.key_length");
        let head_width = match source.find(config, gguf)? {
            Some(width) => width.size()?,
            None if derived && hidden.is_multiple_of(heads) => hidden / heads,
            None if derived => {
                let field = source.field("num_attention_heads", "attention.head_count")?;
                return Err(field.unexpected(format!("a divisor of {hidden}, the hidden size")));
            }
            None => return Err(source.missing(config, gguf)),
        };
        if let Some(values) = source.find("", "attention.value_length")?
            && values.size()? != head_width
        {
            return Err(values.unexpected(format!("{head_width}, the width of a key")));
        }
        let kv = source.find("num_key_value_heads", "attention.head_count_kv")?;
        let kv_heads = kv.as_ref().map_or(Ok(heads), |kv| kv.size())?;
        if let Some(kv) = kv
            && !heads.is_multiple_of(kv_heads)
        {
            return Err(kv.unexpected(format!("a divisor of {heads}, the number of query heads")));
        }
        if head_width % 2 != 0 {
            let odd = format!("heads of {head_width}");
            let key = "the width of a head".to_owned();
            return Err(FamilyError::Unexpected { key, found: odd, expected: "an even width".to_owned() });
        }
        Ok(Heads { heads, kv_heads, head_width })
    }

    /// Width of all query heads.
    pub fn query(&self) -> usize {
        self.heads * self.head_width
    }

    /// Width of all key or value heads.
    pub fn key_value(&self) -> usize {
        self.kv_heads * self.head_width
    }
}

/// Experts and how many of them a token uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Routed {
    pub experts: usize,
    pub experts_per_token: usize,
    pub expert_intermediate: usize,
}

impl Routed {
    pub fn read(source: &Source, expert_intermediate: usize) -> Result<Routed, FamilyError> {
        let experts = source.field("num_local_experts|num_experts", "expert_count")?.integer(1, 1 << 16)?;
        let used =
            source.field("num_experts_per_tok|experts_per_token|top_k_experts", "expert_used_count")?;
        let experts_per_token = used.integer(1, experts)?;
        Ok(Routed { experts, experts_per_token, expert_intermediate })
    }
}

/// Which layers see only a window, and how wide it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Windows {
    /// Positions seen, the token itself included.
    pub sliding_window: Option<usize>,
    #[serde(serialize_with = "indices")]
    pub sliding_layers: Vec<bool>,
}

impl Windows {
    pub fn none(layers: usize) -> Windows {
        Windows { sliding_window: None, sliding_layers: vec![false; layers] }
    }

    /// Every layer slides if a window is given (Mistral).
    pub fn everywhere(source: &Source, layers: usize) -> Result<Windows, FamilyError> {
        match source.find("sliding_window", "attention.sliding_window")? {
            Some(window) => Windows::of(window.integer(1, MAX_CONTEXT)?, source, vec![true; layers]),
            None => Ok(Windows::none(layers)),
        }
    }

    /// The layers from max_window_layers on slide, if use_sliding_window says so (Qwen).
    pub fn upper_layers(source: &Source, layers: usize) -> Result<Windows, FamilyError> {
        if !source.find_flag("use_sliding_window", "")?.unwrap_or(false) {
            return Ok(Windows::none(layers));
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
        let width = || source.field("sliding_window", "attention.sliding_window")?.integer(1, MAX_CONTEXT);
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
fn indices<S: Serializer>(layers: &[bool], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(layers.iter().enumerate().filter(|(_, slides)| **slides).map(|(i, _)| i))
}
