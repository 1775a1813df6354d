//! Prompts in files: JSON lines, or plain lines of text.

use std::path::Path;

use serde::Deserialize;
use turbospark_engine::Model;
use turbospark_engine::capture::CapturedPrompt;
use turbospark_text::{Message, RenderOptions};

use crate::error::CliError;
use crate::run::suggest_raw;

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
pub fn read(path: &Path, model: &Model) -> Result<Vec<CapturedPrompt>, CliError> {
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
        let (text, ids) = ids(line, model)?;
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
        prompts.push(CapturedPrompt { text, ids, rows: 0 });
    }
    if prompts.is_empty() {
        return Err(CliError::file(path, "no prompts"));
    }
    Ok(prompts)
}

fn ids(line: Line, model: &Model) -> Result<(Option<String>, Vec<u32>), CliError> {
    let raw = |text: String| Ok((Some(text.clone()), model.text()?.raw_ids(&text)?));
    let rendered =
        |messages: &[Message]| model.prompt(messages, &RenderOptions::prompt()).map_err(suggest_raw);
    match line {
        Line::Bare(text) => raw(text),
        Line::Object(Object { prompt: Some(prompt), messages: None, text: None, tokens: None }) => {
            let ids = rendered(&[Message::new("user", prompt.as_str())])?;
            Ok((Some(prompt), ids))
        }
        Line::Object(Object { messages: Some(messages), prompt: None, text: None, tokens: None }) => {
            let ids = rendered(&messages)?;
            Ok((Some(model.text()?.render(&messages, &RenderOptions::prompt())?), ids))
        }
        Line::Object(Object { text: Some(text), prompt: None, messages: None, tokens: None }) => raw(text),
        Line::Object(Object { tokens: Some(ids), prompt: None, messages: None, text: None }) => {
            Ok((None, ids))
        }
        Line::Object(_) => {
            let reason = "a prompt is one of prompt, messages, text and tokens".to_owned();
            Err(CliError::Usage(reason))
        }
    }
}
