//! The commands of a chat, each a line that begins with a slash.

use std::path::Path;

use serde::{Deserialize, Serialize};
use turbospark_text::Message;

use super::Chat;
use crate::error::CliError;

const HELP: &str = "\
/system [TEXT]  set the instructions, or show them; /system - removes them
/save FILE      write the conversation as JSON
/load FILE      go on with a saved conversation
/reset          forget the conversation, keep the instructions
/stats          tokens and rates of each answer
/help           this list
A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines.";

/// A saved conversation.
#[derive(Serialize, Deserialize)]
struct Saved {
    messages: Vec<Message>,
}

impl Chat {
    pub(super) fn command(&mut self, line: &str) -> Result<(), CliError> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("system", "") => {
                let system = self.messages.iter().find(|message| message.role == "system");
                match system.and_then(|message| message.content.as_ref()).and_then(|content| content.as_str())
                {
                    Some(text) => println!("{text}"),
                    None => println!("there are no instructions"),
                }
            }
            ("system", "-") => self.set_system(None),
            ("system", text) => self.set_system(Some(text.to_owned())),
            ("save" | "load", "") => {
                return Err(CliError::Usage(format!("/{name} needs a file: /{name} chat.json")));
            }
            ("save", file) => self.save(Path::new(file))?,
            ("load", file) => self.load(Path::new(file))?,
            ("reset", _) => {
                self.messages.retain(|message| message.role == "system");
                self.timings.clear();
            }
            ("stats", _) => self.stats(),
            ("help", _) => println!("{HELP}"),
            _ => return Err(CliError::Usage(format!("there is no command /{name}; /help lists them"))),
        }
        Ok(())
    }

    fn save(&self, path: &Path) -> Result<(), CliError> {
        let saved = Saved { messages: self.messages.clone() };
        let text = serde_json::to_string_pretty(&saved).map_err(|error| CliError::file(path, error))?;
        std::fs::write(path, text + "\n").map_err(|error| CliError::file(path, error))?;
        println!("{} messages written to {}", self.messages.len(), path.display());
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<(), CliError> {
        let text = std::fs::read(path).map_err(|error| CliError::file(path, error))?;
        let saved: Saved = serde_json::from_slice(&text)
            .map_err(|error| CliError::file(path, format!("not a saved conversation: {error}")))?;
        self.messages = saved.messages;
        self.timings.clear();
        println!("{} messages read from {}", self.messages.len(), path.display());
        Ok(())
    }

    fn stats(&self) {
        println!("answer  prompt  kept  prefill/s  tokens  decode/s");
        for (index, t) in self.timings.iter().enumerate() {
            println!(
                "{:6} {:7} {:5} {:10.1} {:7} {:9.1}",
                index + 1,
                t.prompt_tokens,
                t.reused_tokens,
                t.prefill_rate(),
                t.generated_tokens,
                t.decode_rate()
            );
        }
        let tokens: usize = self.timings.last().map_or(0, |t| t.prompt_tokens + t.generated_tokens);
        println!("context: {tokens} of {} positions", self.model.engine.context());
    }
}
