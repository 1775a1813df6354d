//! Answers as text: tokens are decoded, reasoning and answer told apart, stop strings watched for.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::Serialize;
use turbospark_sampling::{Sampler, SamplingOptions};
use turbospark_text::{Event, StopStrings};

use crate::edits::Edits;
use crate::engine::{EngineError, SessionId};
use crate::generate::{Finish, Progress, Request};
use crate::model::Model;

/// How an answer is made.
#[derive(Clone, Debug, Default)]
pub struct AnswerOptions {
    /// Chooses tokens.
    pub sampling: SamplingOptions,
    /// Most tokens; none is as many as the context holds.
    pub max_tokens: Option<usize>,
    /// The answer ends before any of these.
    pub stop: Vec<String>,
    /// The prompt is bare text to go on with, not a rendered conversation.
    pub raw: bool,
    /// Edits of its rows.
    pub edits: Edits,
}

/// Something to show while an answer is made.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The prompt is being computed.
    Prefill {
        /// Positions done, reused ones included.
        done: usize,
        /// Positions of the prompt.
        total: usize,
    },
    /// A piece of reasoning or answer, or a tool call.
    Event(Event),
}

/// A finished answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// What the user is to see.
    pub text: String,
    /// What the model thought before.
    pub reasoning: String,
    /// Calls of tools.
    pub tool_calls: Vec<Call>,
    /// Generated tokens, the stop token included.
    pub token_ids: Vec<u32>,
    /// Why it ended.
    pub finish_reason: Finish,
    /// How long it took.
    pub timings: Timings,
}

/// A call of a tool, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// Name of the tool.
    pub name: String,
    /// Its arguments, mostly a JSON object.
    pub arguments: String,
}

/// Tokens and seconds of the two phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of them, tokens whose keys and values were there from before.
    pub reused_tokens: usize,
    /// Seconds until the first token was chosen.
    pub prefill_seconds: f64,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Seconds from the first token to the last.
    pub decode_seconds: f64,
}

impl Timings {
    /// Prompt tokens computed a second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.reused_tokens, self.prefill_seconds)
    }

    /// Tokens generated a second, the first not counted: it comes with the prompt.
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode_seconds)
    }
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

impl Model {
    /// Answers a prompt. `update` sees everything as it comes and may end the answer.
    pub fn answer(
        &mut self,
        session: SessionId,
        prompt: Vec<u32>,
        options: &AnswerOptions,
        mut update: impl FnMut(Update) -> ControlFlow<()>,
    ) -> Result<Answer, EngineError> {
        let (engine, text) = self.parts()?;
        let stop = StopStrings::new(options.stop.iter().cloned());
        let mut reply = if options.raw { text.raw_reply(stop) } else { text.reply(&prompt, stop)? };
        let mut timings = Timings { prompt_tokens: prompt.len(), ..Timings::default() };
        let request = Request {
            session,
            prompt,
            sampler: Sampler::new(options.sampling.clone())?,
            stop: text.stop_ids.clone(),
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            edits: options.edits.clone(),
        };
        let begin = Instant::now();
        let mut first: Option<Duration> = None;
        let mut generation = engine.generate(vec![request])?;
        timings.reused_tokens = generation.reused(0);
        let (mut ids, mut finish) = (Vec::new(), None);
        let mut shown = Shown::default();
        let mut events = Vec::new();
        while finish.is_none() {
            let progress = generation.step()?;
            for (_, progress) in &progress {
                let flow = match *progress {
                    Progress::Prefill { done, total } => update(Update::Prefill { done, total }),
                    Progress::Token { id, .. } => {
                        first.get_or_insert_with(|| begin.elapsed());
                        ids.push(id);
                        if reply.push(id, &mut events)?.is_some() {
                            finish = Some(Finish::Stop);
                        }
                        shown.pass_on(&mut events, &mut update)
                    }
                    Progress::Finished(why) => {
                        finish.get_or_insert(why);
                        ControlFlow::Continue(())
                    }
                };
                if flow.is_break() {
                    finish.get_or_insert(Finish::Cancelled);
                }
            }
            if progress.is_empty() {
                break;
            }
        }
        reply.finish(&mut events);
        // What is held back at the end is shown even to a caller that broke off.
        let _ = shown.pass_on(&mut events, &mut update);
        let end = begin.elapsed();
        let first = first.unwrap_or(end);
        timings.prefill_seconds = first.as_secs_f64();
        timings.decode_seconds = (end - first).as_secs_f64();
        timings.generated_tokens = ids.len();
        let Shown { text, reasoning, tool_calls } = shown;
        let finish_reason = finish.unwrap_or(Finish::Cancelled);
        Ok(Answer { text, reasoning, tool_calls, token_ids: ids, finish_reason, timings })
    }
}

/// What has been passed on so far.
#[derive(Default)]
struct Shown {
    text: String,
    reasoning: String,
    tool_calls: Vec<Call>,
}

impl Shown {
    fn pass_on(
        &mut self,
        events: &mut Vec<Event>,
        update: &mut impl FnMut(Update) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        for event in events.drain(..) {
            match &event {
                Event::Answer(text) => self.text.push_str(text),
                Event::Reasoning(text) => self.reasoning.push_str(text),
                Event::ToolCall { name, arguments } => {
                    self.tool_calls.push(Call { name: name.clone(), arguments: arguments.clone() })
                }
            }
            if update(Update::Event(event)).is_break() {
                flow = ControlFlow::Break(());
            }
        }
        flow
    }
}
