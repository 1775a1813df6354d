//! The tokens that end an answer, gathered from every place a checkpoint names them.

use std::collections::BTreeSet;

use serde_json::Value;
use turbospark_formats::{Checkpoint, Metadata};

use crate::tokenizer::{gguf_token_id, special_name};
use crate::{TextError, Tokenizer};

/// Names that end a turn in every vocabulary that has them as a control token.
const TURN_ENDS: &[&str] = &[
    "<|return|>",
    "<|call|>",
    "<|end|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<eos>",
    "<|flush|>",
    "<|calls|>",
    "<EOT>",
    "[EOT]",
    "<end_of_utterance>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
];

pub(crate) fn ends_turn_by_name(name: &str) -> bool {
    TURN_ENDS.contains(&name)
}

/// The ids that end an answer, ascending.
///
/// Gathered from config.json and generation_config.json (`eos_token_id`, a number or a list), tokenizer_config.json
/// (`eos_token`) or the GGUF keys for end of sequence, turn and message; then control tokens whose name says that they
/// end a turn. In harmony vocabularies `<|end|>` ends only a message, so it counts only where the checkpoint lists it.
///
/// # Errors
/// A listed id that is not a number or lies outside the vocabulary.
pub fn stop_ids(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
    let mut ids = BTreeSet::new();
    match &checkpoint.metadata {
        Metadata::Config { config, generation } => {
            let text = config.get("text_config");
            for file in [Some(config), text, generation.as_ref()].into_iter().flatten() {
                if let Some(value) = file.get("eos_token_id") {
                    listed(value, &mut ids)?;
                }
            }
            let name = special_name(&checkpoint.tokenizer, "eos_token");
            ids.extend(name.and_then(|name| tokenizer.id(&name)));
        }
        Metadata::Gguf(metadata) => {
            for name in ["eos", "eot", "eom"] {
                ids.extend(gguf_token_id(metadata, name, tokenizer.vocabulary_size())?);
            }
        }
    }
    add_by_name(tokenizer, &mut ids);
    Ok(ids.into_iter().collect())
}

fn add_by_name(tokenizer: &Tokenizer, ids: &mut BTreeSet<u32>) {
    let has = |name: &str| tokenizer.id(name).is_some();
    // Harmony and its relatives end a message with <|end|> and go on with the next.
    let end_goes_on = (has("<|return|>") && has("<|call|>")) || (has("<|flush|>") && has("<|calls|>"));
    for name in TURN_ENDS {
        if *name == "<|end|>" && end_goes_on {
            continue;
        }
        ids.extend(tokenizer.id(name).filter(|&id| tokenizer.is_special(id)));
    }
}

fn listed(value: &Value, ids: &mut BTreeSet<u32>) -> Result<(), TextError> {
    let items = match value {
        Value::Null => return Ok(()),
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    for item in items {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        // Ids of the embedding's padding rows are harmless: they can be sampled, so they may stop.
        ids.insert(
            id.ok_or_else(|| TextError::vocabulary("eos_token_id", format!("{item} is not a token id")))?,
        );
    }
    Ok(())
}
