//! Prompts in files: JSON lines, or plain lines of text.

use std::path::Path;

use serde::Deserialize;
use turbospark_engine::Model;
use turbospark_text::{Message, RenderOptions};

use crate::error::CliError;
use crate::run::suggest_raw;

/// A prompt of a file.
pub struct Prompt {
    /// The text it was made from; none if it is token ids.
    pub text: Option<String>,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Whether it is a conversation that the chat template rendered, so that an answer follows, not a continuation.
    pub rendered: bool,
}

/// What a line of a prompt file may say.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Bare(String),
    Object(Object),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    /// What a user asks, rendered by the chat template.
    prompt: Option<String>,
    /// A conversation, rendered by the chat template.
    messages: Option<Vec<Message>>,
    /// Text as it is.
    text: Option<String>,
    /// Token ids.
    tokens: Option<Vec<u32>>,
}

/// Reads the prompts of a file; a name that does not end in .jsonl or .json is one of plain lines.
pub fn read(path: &Path, model: &Model) -> Result<Vec<Prompt>, CliError> {
    let text = std::fs::read_to_string(path).map_err(|error| CliError::file(path, error))?;
    let json = path.extension().is_some_and(|e| e == "jsonl" || e == "json");
    let mut prompts = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at =
            |reason: &dyn std::fmt::Display| CliError::file(path, format!("line {}: {reason}", index + 1));
        let line = match json {
            false => Line::Bare(line.to_owned()),
            true => serde_json::from_str(line).map_err(|error| {
                at(&format!("expected a string or an object with prompt, messages, text or tokens: {error}"))
            })?,
        };
        let prompt = prompt(line, model)?;
        let ids = &prompt.ids;
        let (context, vocabulary) = (model.engine.context(), model.engine.program().vocabulary());
        if ids.is_empty() {
            return Err(at(&"the prompt has no tokens"));
        }
        if ids.len() > context {
            return Err(at(&format!("{} tokens, the context is {context}; raise --context", ids.len())));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(at(&format!("token {id} is not below the vocabulary of {vocabulary}")));
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        return Err(CliError::file(path, "no prompts"));
    }
    Ok(prompts)
}

fn prompt(line: Line, model: &Model) -> Result<Prompt, CliError> {
    let raw = |text: String| {
        let ids = model.text()?.raw_ids(&text)?;
        Ok(Prompt { text: Some(text), ids, rendered: false })
    };
    let rendered = |text: Option<String>, messages: &[Message]| {
        let options = RenderOptions::prompt();
        let ids = model.prompt(messages, &options).map_err(suggest_raw)?;
        let text = match text {
            Some(text) => text,
            None => model.text()?.render(messages, &options)?,
        };
        Ok(Prompt { text: Some(text), ids, rendered: true })
    };
    match line {
        Line::Bare(text) => raw(text),
        Line::Object(Object { prompt: Some(prompt), messages: None, text: None, tokens: None }) => {
            let messages = [Message::new("user", prompt.as_str())];
            rendered(Some(prompt), &messages)
        }
        Line::Object(Object { messages: Some(messages), prompt: None, text: None, tokens: None }) => {
            rendered(None, &messages)
        }
        Line::Object(Object { text: Some(text), prompt: None, messages: None, tokens: None }) => raw(text),
        Line::Object(Object { tokens: Some(ids), prompt: None, messages: None, text: None }) => {
            Ok(Prompt { text: None, ids, rendered: false })
        }
        Line::Object(_) => {
            let reason = "a prompt is one of prompt, messages, text and tokens".to_owned();
            Err(CliError::Usage(reason))
        }
    }
}
