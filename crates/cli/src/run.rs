//! `turbospark run`: one answer, or a small chat where there is no prompt.

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use turbospark_engine::{Answer, AnswerOptions, EngineError, Model, RunStatistics};
use turbospark_text::{Message, RenderOptions, TextError};

use crate::chat::Chat;
use crate::error::CliError;
use crate::options::RunArgs;
use crate::printer::{Printer, Reasoning, catch_interrupts, closing_line, statistics_table};
use crate::router_trace::RouterTraceArgs;
use crate::sampling::SamplingArgs;
use crate::steer_args::SteerArgs;
use crate::terminal::{Bar, Dim};

/// Answer a prompt, or chat where there is none
#[derive(Args)]
#[command(
    after_help = "Examples:\n  turbospark run \"Tell me a story about a fox and a lantern.\"\n  turbospark run -m \
model.gguf --system \"Answer in one sentence.\" \"What is the capital of France?\"\n  turbospark run -m model.gguf \
--raw \"Once upon a time\" --max-tokens 100 --temperature 0\n  cat question.txt | turbospark run -m model.gguf --json"
)]
pub struct Run {
    /// The prompt; without it standard input, and on a terminal a chat
    prompt: Option<String>,
    #[command(flatten)]
    talk: TalkArgs,
    /// Go on with the prompt as bare text, without the chat template
    #[arg(long, conflicts_with_all = ["system", "thinking", "reasoning_effort", "template_arg"])]
    raw: bool,
    /// Print one JSON object instead: text, reasoning, token ids, finish reason, timings
    #[arg(long)]
    json: bool,
    /// Afterwards say where the time went and what was read of the disk, for prompt and answer
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    trace: RouterTraceArgs,
}

/// What `run` and `chat` share.
#[derive(Args, Clone, Debug)]
pub struct TalkArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store; without it the demo model
    #[arg(short, long)]
    pub model: Option<PathBuf>,
    /// Instructions to the model that stand before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Most tokens of an answer [default: until the context is full]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// End the answer before this text; repeatable
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// What becomes of the model's reasoning
    #[arg(long, value_enum, default_value_t = Reasoning::Show)]
    pub reasoning: Reasoning,
    /// Whether a model that can think before it answers does so
    #[arg(long, value_enum)]
    pub thinking: Option<Switch>,
    /// How much a model that knows degrees of it thinks: low, medium, high
    #[arg(long, value_name = "EFFORT")]
    pub reasoning_effort: Option<String>,
    /// A variable for the chat template, as JSON or text; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub template_arg: Vec<String>,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub steer: SteerArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Run {
    pub fn execute(&self) -> Result<(), CliError> {
        let prompt = match &self.prompt {
            Some(prompt) => Some(prompt.clone()),
            None if std::io::stdin().is_terminal() => None,
            None => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).map_err(|error| {
                    CliError::Usage(format!("reading the prompt from standard input: {error}"))
                })?;
                Some(text.trim_end_matches(['\n', '\r']).to_owned())
            }
        };
        match prompt {
            None if self.raw || self.json || self.stats || self.trace.is_given() => Err(CliError::Usage(
                "--raw, --json, --stats and --router-trace need a prompt: give one, or pipe it in".to_owned(),
            )),
            None => Chat::open(&self.talk)?.run(),
            Some(prompt) => self.answer(prompt),
        }
    }

    fn answer(&self, prompt: String) -> Result<(), CliError> {
        catch_interrupts();
        let mut model = self.talk.open()?;
        let raw = self.raw || self.must_be_raw(&model)?;
        let options = AnswerOptions { raw, ..self.talk.answer_options(&model)? };
        let ids = if raw {
            model.text()?.raw_ids(&prompt)?
        } else {
            let mut messages: Vec<Message> =
                self.talk.system.iter().map(|text| Message::new("system", text.as_str())).collect();
            messages.push(Message::new("user", prompt.as_str()));
            model.prompt(&messages, &self.talk.render_options()?).map_err(suggest_raw)?
        };
        if raw && !self.json {
            // A continuation reads on from its beginning.
            let mut out = std::io::stdout().lock();
            out.write_all(prompt.as_bytes())?;
            out.flush()?;
        }
        let seed = options.sampling.seed;
        self.trace.start(&mut model)?;
        let session = model.engine.open_session();
        let mut printer = Printer::new(self.talk.reasoning, self.json);
        let answer = model.answer(session, ids, &options, |update| printer.update(update))?;
        printer.finish()?;
        self.trace.finish(&mut model)?;
        if self.json {
            return write_json(&answer, seed, &model.engine.take_statistics());
        }
        let mut dim = Dim::new();
        dim.write(&closing_line(&answer, seed))?;
        dim.end()?;
        if self.stats {
            eprint!("{}", statistics_table(&model.engine.take_statistics()));
        }
        Ok(())
    }

    /// Whether the model has no chat template and nothing was asked for that needs one: a base model goes on with text.
    fn must_be_raw(&self, model: &Model) -> Result<bool, CliError> {
        let talk = &self.talk;
        let templated = talk.system.is_some()
            || talk.thinking.is_some()
            || talk.reasoning_effort.is_some()
            || !talk.template_arg.is_empty();
        let raw = !templated && !model.text()?.has_template();
        if raw {
            eprintln!(
                "note: this model has no chat template (a base model, perhaps): it goes on with the prompt as bare text, as with --raw"
            );
        }
        Ok(raw)
    }
}

impl TalkArgs {
    /// Opens the model, with a spinner on a terminal.
    pub fn open(&self) -> Result<Model, CliError> {
        let name = self.model.as_ref().map_or("the demo model".into(), |path| path.display().to_string());
        let _bar = Bar::waiting(&format!("loading {name}"));
        self.run.open(self.model.as_ref())
    }

    pub fn answer_options(&self, model: &Model) -> Result<AnswerOptions, CliError> {
        Ok(AnswerOptions {
            sampling: self.sampling.over(&model.sampling)?,
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            edits: self.steer.edits(model)?,
            ..AnswerOptions::default()
        })
    }

    pub fn render_options(&self) -> Result<RenderOptions, CliError> {
        let mut args = Map::new();
        if let Some(thinking) = self.thinking {
            args.insert("enable_thinking".to_owned(), (thinking == Switch::On).into());
        }
        if let Some(effort) = &self.reasoning_effort {
            args.insert("reasoning_effort".to_owned(), effort.as_str().into());
        }
        for given in &self.template_arg {
            let (name, value) = given.split_once('=').ok_or_else(|| {
                CliError::Usage(format!(
                    "--template-arg {given}: expected a name, = and a value, as in lang=en"
                ))
            })?;
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            args.insert(name.to_owned(), value);
        }
        Ok(RenderOptions { args, ..RenderOptions::prompt() })
    }
}

/// A model without a template is mostly a base model.
pub fn suggest_raw(error: EngineError) -> CliError {
    match error {
        EngineError::Text(TextError::NoTemplate) => CliError::Usage(
            "this model has no chat template (a base model, perhaps); use --raw to go on with the prompt as bare text"
                .to_owned(),
        ),
        other => other.into(),
    }
}

fn write_json(answer: &Answer, seed: u64, statistics: &RunStatistics) -> Result<(), CliError> {
    let mut value = serde_json::to_value(answer).map_err(std::io::Error::from)?;
    value["seed"] = seed.into();
    value["statistics"] = serde_json::to_value(statistics).map_err(std::io::Error::from)?;
    value["timings"]["prefill_tokens_per_second"] = json!(answer.timings.prefill_rate());
    value["timings"]["decode_tokens_per_second"] = json!(answer.timings.decode_rate());
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}
