//! Generation: scheduling the rows of several requests and sampling their tokens.

use turbospark_program::{Batch, Outputs, Row};
use turbospark_sampling::Sampler;

use crate::edits::Edits;
use crate::engine::{Engine, EngineError, SessionId};
use crate::statistics::Phase;

/// One continuation to generate.
#[derive(Debug)]
pub struct Request {
    /// Where the past is kept; its longest common prefix with the prompt is not computed again.
    pub session: SessionId,
    /// The whole prompt, from position 0.
    pub prompt: Vec<u32>,
    /// Chooses tokens.
    pub sampler: Sampler,
    /// Tokens after which generation ends; they are reported, then nothing more.
    pub stop: Vec<u32>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Edits of its rows.
    pub edits: Edits,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// A stop token or stop string.
    Stop,
    /// The wanted number of tokens, or the context is full.
    Length,
    /// The caller ended it.
    Cancelled,
}

/// What one step brought for one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    /// Prompt positions computed so far, reused ones included.
    Prefill {
        /// Positions done.
        done: usize,
        /// Positions of the prompt.
        total: usize,
    },
    /// A token was chosen.
    Token {
        /// Its id.
        id: u32,
        /// Natural logarithm of its probability under the model.
        logprob: f32,
    },
    /// Nothing more will come.
    Finished(Finish),
}

/// Requests being generated together. Dropping it ends them; what was computed stays with their sessions.
pub struct Generation<'e> {
    engine: &'e mut Engine,
    active: Vec<Active>,
    /// Rows of the current step; its edit sets are, for each request, those of its prompt and of what it generates.
    batch: Batch,
    /// Which request each row is of.
    owners: Vec<usize>,
    logits: Vec<f32>,
}

struct Active {
    request: Request,
    /// Prompt and generated tokens.
    tokens: Vec<u32>,
    generated: usize,
    /// Positions of the prompt that were there from before.
    reused: usize,
    finished: bool,
}

impl Engine {
    /// Begins to generate. Every prompt must be non-empty and leave room for a token in the context.
    pub fn generate(&mut self, requests: Vec<Request>) -> Result<Generation<'_>, EngineError> {
        let mut reused = Vec::new();
        for request in &requests {
            let (tokens, context) = (request.prompt.len(), self.context());
            if tokens == 0 {
                return Err(EngineError::EmptyPrompt);
            }
            if tokens >= context {
                return Err(EngineError::PromptTooLong { tokens, context });
            }
            reused.push(self.reuse_prefix(request.session, &request.prompt, &request.edits)?);
        }
        let sets = |request: &Request| [request.edits.prompt.clone(), request.edits.generated.clone()];
        let edits = requests.iter().flat_map(sets).collect();
        let active = requests.into_iter().zip(reused).map(|(request, reused)| Active {
            tokens: request.prompt.clone(),
            generated: 0,
            reused,
            finished: false,
            request,
        });
        Ok(Generation {
            active: active.collect(),
            batch: Batch { rows: Vec::new(), edits },
            owners: Vec::new(),
            logits: Vec::new(),
            engine: self,
        })
    }
}

impl Generation<'_> {
    /// Computes one batch: the next chunk of each prompt, or the next token of each request past its prompt.
    /// Returns what happened by request; empty when all are finished.
    pub fn step(&mut self) -> Result<Vec<(usize, Progress)>, EngineError> {
        self.plan()?;
        if self.batch.rows.is_empty() {
            return Ok(Vec::new());
        }
        let Generation { engine, active, batch, owners, logits } = self;
        let vocabulary = engine.executor.program().vocabulary();
        logits.resize(batch.wanted() * vocabulary, 0.0);
        let reading = owners.iter().any(|&owner| active[owner].generated == 0);
        let phase = if reading { Phase::Prefill } else { Phase::Decode };
        engine.step(phase, batch, Outputs::logits(logits))?;
        for (row, &owner) in batch.rows.iter().zip(&*owners) {
            engine.session_mut(active[owner].request.session)?.tokens.push(row.token);
        }
        let mut progress = Vec::new();
        let mut logits = logits.chunks_exact_mut(vocabulary);
        for (index, active) in active.iter_mut().enumerate() {
            let Some(at) = owners.iter().rposition(|&owner| owner == index) else { continue };
            let (last, total) = (batch.rows[at], active.request.prompt.len());
            if active.generated == 0 {
                progress.push((index, Progress::Prefill { done: last.position as usize + 1, total }));
            }
            if last.logits
                && let Some(logits) = logits.next()
            {
                active.choose(index, logits, engine.context(), &mut progress)?;
            }
        }
        Ok(progress)
    }

    /// Positions of a request's prompt that its session held already.
    pub fn reused(&self, request: usize) -> usize {
        self.active.get(request).map_or(0, |active| active.reused)
    }

    /// Ends one request, as a stop string does.
    pub fn finish(&mut self, request: usize) {
        if let Some(active) = self.active.get_mut(request) {
            active.finished = true;
        }
    }

    /// Lists rows of every unfinished request, prompts in chunks.
    fn plan(&mut self) -> Result<(), EngineError> {
        let Generation { engine, active, batch, owners, .. } = self;
        batch.rows.clear();
        owners.clear();
        let mut room = engine.memory().chunk;
        for (index, active) in active.iter().enumerate().filter(|(_, active)| !active.finished) {
            let sequence = engine.session(active.request.session)?.sequence;
            let done = engine.states.length(sequence).unwrap_or(0) as usize;
            // A request always gets a row: long prompts beside it must not stop an answer.
            let count = (active.tokens.len() - done).min(room.max(1));
            room = room.saturating_sub(count);
            let Edits { prompt, generated } = &active.request.edits;
            let sets = [(prompt, 2 * index), (generated, 2 * index + 1)];
            let sets = sets.map(|(set, at)| (!set.is_empty()).then_some(at as u16));
            for position in done..done + count {
                batch.rows.push(Row {
                    token: active.tokens[position],
                    sequence,
                    position: position as u32,
                    logits: position + 1 == active.tokens.len(),
                    edits: sets[usize::from(position >= active.request.prompt.len())],
                    capture: engine.trace.is_some(),
                });
                owners.push(index);
            }
        }
        Ok(())
    }
}

impl Active {
    fn choose(
        &mut self,
        index: usize,
        logits: &mut [f32],
        context: usize,
        progress: &mut Vec<(usize, Progress)>,
    ) -> Result<(), EngineError> {
        let position = self.tokens.len() as u32;
        let choice = self.request.sampler.sample(logits, position, &self.tokens)?;
        self.tokens.push(choice.id);
        self.generated += 1;
        progress.push((index, Progress::Token { id: choice.id, logprob: choice.logprob }));
        let finish = if self.request.stop.contains(&choice.id) {
            Some(Finish::Stop)
        } else if self.generated >= self.request.max_tokens || self.tokens.len() >= context {
            Some(Finish::Length)
        } else {
            None
        };
        if let Some(finish) = finish {
            self.finished = true;
            progress.push((index, Progress::Finished(finish)));
        }
        Ok(())
    }
}
