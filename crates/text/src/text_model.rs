//! The text side of a model: everything between messages and token ids.

use serde_json::Value;
use turbospark_formats::{Checkpoint, GgufMetadata, Metadata, TokenizerFiles};

use crate::tokenizer::{gguf_token_id, special_name};
use crate::{
    ChatTemplate, Dialect, Message, RenderOptions, Reply, Special, StopStrings, TextError, Tokenizer,
    stop_ids,
};

/// How much of a prompt's end tells a dialect where the answer begins.
const PROMPT_END: usize = 512;

/// Tokenizer, chat template, stop tokens and dialect of one checkpoint.
#[derive(Debug)]
pub struct TextModel {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if the checkpoint has one.
    pub template: Option<ChatTemplate>,
    /// Tokens that end an answer, ascending.
    pub stop_ids: Vec<u32>,
    /// How answers are structured.
    pub dialect: Dialect,
}

impl TextModel {
    /// Reads the text side of a checkpoint.
    ///
    /// # Errors
    /// A tokenizer or template that is missing a part, hostile or not supported. A missing template is no error until
    /// it is needed.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::open(checkpoint)?;
        let stop_ids = stop_ids(checkpoint, &tokenizer)?;
        let mut template =
            template_source(checkpoint)?.map(|source| ChatTemplate::new(&source)).transpose()?;
        if let Some(template) = &mut template {
            match &checkpoint.metadata {
                Metadata::Config { .. } => tokens_from_files(template, &checkpoint.tokenizer),
                Metadata::Gguf(metadata) => tokens_from_gguf(template, metadata, &tokenizer)?,
            }
        }
        let dialect = Dialect::detect(template.as_ref().map(ChatTemplate::source), &tokenizer);
        Ok(TextModel { tokenizer, template, stop_ids, dialect })
    }

    /// The prompt for a conversation, as text.
    ///
    /// # Errors
    /// No template, or what the template refuses.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        self.template.as_ref().ok_or(TextError::NoTemplate)?.render(messages, options)
    }

    /// The prompt for a conversation, as ids. The template's special tokens are parsed; a beginning-of-text token is
    /// there once if the model wants one.
    ///
    /// # Errors
    /// As [`TextModel::render`].
    pub fn prompt_ids(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>, TextError> {
        let text = self.render(messages, options)?;
        self.tokenizer.encode_prompt(&text, Special::Parse)
    }

    /// The ids of a raw prompt; special tokens in it are parsed.
    ///
    /// # Errors
    /// Text that cannot be encoded.
    pub fn raw_ids(&self, prompt: &str) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode_prompt(prompt, Special::Parse)
    }

    /// Reads the answer to a rendered prompt.
    ///
    /// # Errors
    /// A prompt id outside the vocabulary.
    pub fn reply(&self, prompt: &[u32], stop_strings: StopStrings) -> Result<Reply<'_>, TextError> {
        let end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        let end = self.tokenizer.decode_all(end)?;
        let detokenizer = self.tokenizer.detokenizer();
        Ok(Reply::new(&self.tokenizer, detokenizer, self.dialect, &end, &self.stop_ids, stop_strings))
    }

    /// Reads the continuation of a raw prompt: all of it is answer.
    pub fn raw_reply(&self, stop_strings: StopStrings) -> Reply<'_> {
        let detokenizer = self.tokenizer.continuation();
        Reply::new(&self.tokenizer, detokenizer, Dialect::Plain, "", &self.stop_ids, stop_strings)
    }
}

/// The template's text: chat_template.jinja first, then tokenizer_config.json (one template, or a list with names).
fn template_source(checkpoint: &Checkpoint) -> Result<Option<String>, TextError> {
    match &checkpoint.metadata {
        Metadata::Gguf(metadata) => Ok(metadata.string("tokenizer.chat_template")?.map(str::to_owned)),
        Metadata::Config { .. } => {
            if let Some(source) = &checkpoint.tokenizer.chat_template {
                return Ok(Some(source.clone()));
            }
            let config = checkpoint.tokenizer.config.as_ref();
            Ok(config.and_then(|c| c.get("chat_template")).and_then(|value| match value {
                Value::String(source) => Some(source.clone()),
                Value::Array(named) => {
                    let is = |entry: &&Value| entry.get("name").and_then(Value::as_str) == Some("default");
                    let entry = named.iter().find(is).or_else(|| named.first())?;
                    Some(entry.get("template")?.as_str()?.to_owned())
                }
                _ => None,
            }))
        }
    }
}

fn tokens_from_files(template: &mut ChatTemplate, files: &TokenizerFiles) {
    for key in ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"] {
        if let Some(text) = special_name(files, key) {
            template.set_token(key, text);
        }
    }
}

fn tokens_from_gguf(
    template: &mut ChatTemplate,
    metadata: &GgufMetadata,
    tokenizer: &Tokenizer,
) -> Result<(), TextError> {
    for (variable, key) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        if let Some(id) = gguf_token_id(metadata, key, tokenizer.vocabulary_size())? {
            template.set_token(variable, tokenizer.token_name(id));
        }
    }
    Ok(())
}
