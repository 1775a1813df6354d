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
    /// The chat template, if the checkpoint has one that can be compiled.
    pub template: Option<ChatTemplate>,
    /// Another template for conversations with tools, which a few checkpoints have.
    pub tool_template: Option<ChatTemplate>,
    /// Tokens that end an answer, ascending.
    pub stop_ids: Vec<u32>,
    /// How answers are structured.
    pub dialect: Dialect,
    /// Why a template that is there cannot be compiled.
    broken_template: Option<String>,
}

impl TextModel {
    /// Whether the checkpoint has a chat template, be it one that cannot be compiled.
    pub fn has_template(&self) -> bool {
        self.template.is_some() || self.broken_template.is_some()
    }

    /// Reads the text side of a checkpoint.
    ///
    /// # Errors
    /// A tokenizer that is missing, hostile or not supported. A template that is missing or broken is no error until it
    /// is needed: raw prompts work without.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::open(checkpoint)?;
        let stop_ids = stop_ids(checkpoint, &tokenizer)?;
        let mut broken_template = None;
        let mut compile = |name: &str| -> Result<Option<ChatTemplate>, TextError> {
            let Some(source) = template_source(checkpoint, name)? else { return Ok(None) };
            let mut template = match ChatTemplate::new(&source) {
                Ok(template) => template,
                Err(TextError::TemplateSyntax(problem)) => {
                    broken_template.get_or_insert(problem);
                    return Ok(None);
                }
                Err(other) => return Err(other),
            };
            match &checkpoint.metadata {
                Metadata::Config { .. } => tokens_from_files(&mut template, &checkpoint.tokenizer),
                Metadata::Gguf(metadata) => tokens_from_gguf(&mut template, metadata, &tokenizer)?,
            }
            Ok(Some(template))
        };
        let (template, tool_template) = (compile("default")?, compile("tool_use")?);
        let dialect = Dialect::detect(template.as_ref().map(ChatTemplate::source), &tokenizer);
        Ok(TextModel { tokenizer, template, tool_template, stop_ids, dialect, broken_template })
    }

    /// The prompt for a conversation, as text.
    ///
    /// # Errors
    /// No template, or what the template refuses.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        let for_tools = self.tool_template.as_ref().filter(|_| !options.tools.is_empty());
        match (for_tools.or(self.template.as_ref()), &self.broken_template) {
            (Some(template), _) => template.render(messages, options),
            (None, Some(problem)) => Err(TextError::TemplateSyntax(problem.clone())),
            (None, None) => Err(TextError::NoTemplate),
        }
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

/// The text of the template `default` or of another by name: chat_template.jinja first, then tokenizer_config.json (one
/// template, or a list with names).
fn template_source(checkpoint: &Checkpoint, name: &str) -> Result<Option<String>, TextError> {
    let default = name == "default";
    if let Metadata::Gguf(metadata) = &checkpoint.metadata {
        let key = if default {
            "tokenizer.chat_template".into()
        } else {
            format!("tokenizer.chat_template.{name}")
        };
        return Ok(metadata.string(&key)?.map(str::to_owned));
    }
    if let Some(source) = &checkpoint.tokenizer.chat_template {
        return Ok(default.then(|| source.clone()));
    }
    let value = checkpoint.tokenizer.config.as_ref().and_then(|c| c.get("chat_template"));
    Ok(value.and_then(|value| match value {
        Value::String(source) => default.then(|| source.clone()),
        Value::Array(named) => {
            let entry = named.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?;
            Some(entry.get("template")?.as_str()?.to_owned())
        }
        _ => None,
    }))
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
