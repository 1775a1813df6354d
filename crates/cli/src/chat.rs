//! `turbospark chat`: a conversation on the terminal, with history, editing and commands.

mod commands;

use clap::Args;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use turbospark_engine::{Finish, Model, SessionId, Timings};
use turbospark_text::Message;

use crate::error::CliError;
use crate::printer::{Printer, catch_interrupts, closing_line};
use crate::run::{TalkArgs, suggest_raw};
use crate::terminal::Dim;

/// Chat with a model on the terminal
#[derive(Args)]
#[command(
    after_help = "In the chat: /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.\n\nExample:\n  \
turbospark chat -m model.gguf --system \"You are a patient teacher.\""
)]
pub struct ChatArgs {
    #[command(flatten)]
    talk: TalkArgs,
}

impl ChatArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        Chat::open(&self.talk)?.run()
    }
}

/// A conversation and the session that holds its past.
pub struct Chat {
    talk: TalkArgs,
    model: Model,
    session: SessionId,
    messages: Vec<Message>,
    /// Turns, for /stats.
    timings: Vec<Timings>,
    /// Counts answers, so that each draws anew under one seed.
    seed: u64,
}

impl Chat {
    pub fn open(talk: &TalkArgs) -> Result<Chat, CliError> {
        let mut model = talk.open()?;
        // Options that cannot be used are refused before anything is typed.
        let seed = talk.answer_options(&model)?.sampling.seed;
        talk.render_options()?;
        let session = model.engine.open_session();
        let mut chat =
            Chat { talk: talk.clone(), model, session, messages: Vec::new(), timings: Vec::new(), seed };
        chat.set_system(talk.system.clone());
        Ok(chat)
    }

    /// Reads, answers, until Ctrl-D.
    pub fn run(mut self) -> Result<(), CliError> {
        catch_interrupts();
        let mut editor = DefaultEditor::new().map_err(terminal)?;
        let mut dim = Dim::new();
        dim.write("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends")?;
        dim.end()?;
        loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(terminal(error)),
            };
            let text = continued(line, &mut editor)?;
            if text.trim().is_empty() {
                continue;
            }
            // History is a comfort: what it cannot keep is no reason to stop.
            let _ = editor.add_history_entry(&text);
            let result = match text.strip_prefix('/') {
                Some(command) => self.command(command),
                None => self.answer(text),
            };
            if let Err(error) = result {
                match error {
                    CliError::Output(_) => return Err(error),
                    other => eprintln!("error: {other}"),
                }
            }
        }
    }

    fn answer(&mut self, text: String) -> Result<(), CliError> {
        self.messages.push(Message::new("user", text));
        let result = self.respond();
        if result.is_err() {
            self.messages.pop();
        }
        result
    }

    fn respond(&mut self) -> Result<(), CliError> {
        let prompt = self.model.prompt(&self.messages, &self.talk.render_options()?).map_err(suggest_raw)?;
        let mut options = self.talk.answer_options(&self.model)?;
        options.sampling.seed = self.seed;
        let mut printer = Printer::new(self.talk.reasoning, false);
        let answer = self.model.answer(self.session, prompt, &options, |update| printer.update(update))?;
        printer.finish()?;
        let mut dim = Dim::new();
        dim.write(&closing_line(&answer, self.seed))?;
        dim.end()?;
        if answer.finish_reason == Finish::Length && answer.text.is_empty() {
            dim.write("the context is full: /reset begins anew, --context makes room")?;
            dim.end()?;
        }
        self.timings.push(answer.timings);
        let reasoning = (!answer.reasoning.is_empty()).then_some(answer.reasoning);
        self.messages.push(Message { reasoning, ..Message::new("assistant", answer.text) });
        Ok(())
    }

    fn set_system(&mut self, text: Option<String>) {
        self.messages.retain(|message| message.role != "system");
        if let Some(text) = text {
            self.messages.insert(0, Message::new("system", text));
        }
    }
}

/// A line that ends in a backslash goes on in the next; one that begins with three quotes goes on to the next three.
fn continued(mut text: String, editor: &mut DefaultEditor) -> Result<String, CliError> {
    const QUOTES: &str = "\"\"\"";
    let quoted = text.trim_start().starts_with(QUOTES);
    loop {
        let open = match quoted {
            true => text.matches(QUOTES).count() < 2,
            false => text.ends_with('\\'),
        };
        if !open {
            return Ok(if quoted { text.replace(QUOTES, "").trim_matches('\n').to_owned() } else { text });
        }
        if !quoted {
            text.pop();
        }
        match editor.readline(". ") {
            Ok(line) => text = text + "\n" + &line,
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(String::new()),
            Err(error) => return Err(terminal(error)),
        }
    }
}

fn terminal(error: ReadlineError) -> CliError {
    CliError::Usage(format!("reading from the terminal: {error}"))
}
