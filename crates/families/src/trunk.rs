//! What models have in common around their layers, and the sizes that describe it.

use serde::Serialize;
use turbospark_program::{BuildError, Builder, Program, Reg, Tap, Weight};

use crate::FamilyError;
use crate::field::Field;
use crate::source::Source;

const EMBEDDING: &str = "model.embed_tokens.weight";
const MAX_VOCABULARY: usize = 1 << 24;
pub(crate) const MAX_HEAD_WIDTH: usize = 1 << 14;
/// Positions are 32 bits wide.
pub(crate) const MAX_CONTEXT: usize = 1 << 31;

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
            layers: source.layers()?,
            hidden: source.size("hidden_size", "embedding_length")?,
            vocabulary: vocabulary(source, "vocab_size", EMBEDDING)?,
            context: source.field("max_position_embeddings", "context_length")?.integer(1, MAX_CONTEXT)?,
            eps: source.field("rms_norm_eps", "attention.layer_norm_rms_epsilon")?.single()?,
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

/// Rows of an embedding table: the config's word, or in a GGUF, whose key may count the tokenizer's, the tensor's.
pub(crate) fn vocabulary(source: &Source, key: &str, table: &str) -> Result<usize, FamilyError> {
    if let Some(size) = source.find(key, "")? {
        return size.integer(1, MAX_VOCABULARY);
    }
    let rows = source.shape(table).filter(|shape| shape.len() == 2).map(|shape| shape[0]);
    rows.filter(|rows| (1..=MAX_VOCABULARY).contains(rows))
        .ok_or_else(|| FamilyError::Tensor { name: table.to_owned(), reason: "its rows are the vocabulary" })
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    /// Width of one.
    pub head_width: usize,
}

impl Heads {
    /// Heads whose width is given.
    pub fn read(source: &Source) -> Result<Heads, FamilyError> {
        let width = source.field("head_dim", "attention.key_length")?;
        Heads::of_width(source, width.integer(1, MAX_HEAD_WIDTH)?)
    }

    /// Heads that share the residual stream's width where theirs is not given.
    pub fn read_or_divide(source: &Source, hidden: usize) -> Result<Heads, FamilyError> {
        if source.find("head_dim", "attention.key_length")?.is_some() {
            return Heads::read(source);
        }
        let field = source.field("num_attention_heads", "attention.head_count")?;
        let heads = field.size()?;
        if !hidden.is_multiple_of(heads) {
            return Err(field.unexpected(format!("a divisor of {hidden}, the hidden size")));
        }
        Heads::of_width(source, hidden / heads)
    }

    fn of_width(source: &Source, width: usize) -> Result<Heads, FamilyError> {
        let heads = source.size("num_attention_heads", "attention.head_count")?;
        if let Some(values) = source.find("", "attention.value_length")?
            && values.size()? != width
        {
            return Err(values.unexpected(format!("{width}, the width of a key")));
        }
        let kv_heads = match source.find("num_key_value_heads", "attention.head_count_kv")? {
            Some(field) => Heads::divisor(&field, heads)?,
            None => heads,
        };
        Heads { heads, kv_heads, head_width: width }.checked()
    }

    /// A number of key-value heads that query heads can share.
    pub fn divisor(field: &Field, heads: usize) -> Result<usize, FamilyError> {
        let kv_heads = field.size()?;
        let error = || field.unexpected(format!("a divisor of {heads}, the number of query heads"));
        heads.is_multiple_of(kv_heads).then_some(kv_heads).ok_or_else(error)
    }

    /// Rotary pairs need an even width.
    pub fn checked(self) -> Result<Heads, FamilyError> {
        if self.head_width > MAX_HEAD_WIDTH || !self.head_width.is_multiple_of(2) {
            return Err(FamilyError::Unexpected {
                key: "the width of an attention head".to_owned(),
                found: self.head_width.to_string(),
                expected: format!("an even number up to {MAX_HEAD_WIDTH}"),
            });
        }
        Ok(self)
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
