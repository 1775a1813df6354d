//! Sampling options on the command line.

use clap::Args;
use turbospark_sampling::SamplingOptions;

use crate::error::CliError;

/// How tokens are chosen; what is not given comes from the checkpoint's generation config, else from the defaults
/// temperature 0.8, top-k 40, top-p 0.95, min-p 0.05.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Divides the logits; 0 always takes the most likely token
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Keep the most likely tokens that together reach P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Keep tokens of typical surprise up to P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub typical_p: Option<f32>,
    /// Divide the logits of recent tokens by R
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Subtract X from the logits of recent tokens
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract X for every time a recent token occurred
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Tokens that the penalties look back at
    #[arg(long, value_name = "N")]
    pub penalty_last_n: Option<usize>,
    /// Add X to the logit of token ID; repeatable, -inf bans the token
    #[arg(long, value_name = "ID=X", allow_hyphen_values = true)]
    pub logit_bias: Vec<String>,
    /// Makes draws repeatable [default: from the clock, printed at the end]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// These options over those that the model recommends.
    pub fn over(&self, recommended: &SamplingOptions) -> Result<SamplingOptions, CliError> {
        let mut options = recommended.clone();
        let set = |field: &mut f32, given: Option<f32>| *field = given.unwrap_or(*field);
        set(&mut options.temperature, self.temperature);
        set(&mut options.top_p, self.top_p);
        set(&mut options.min_p, self.min_p);
        set(&mut options.typical_p, self.typical_p);
        set(&mut options.repetition_penalty, self.repetition_penalty);
        set(&mut options.presence_penalty, self.presence_penalty);
        set(&mut options.frequency_penalty, self.frequency_penalty);
        options.top_k = self.top_k.unwrap_or(options.top_k);
        options.penalty_last_n = self.penalty_last_n.or(options.penalty_last_n);
        for given in &self.logit_bias {
            let (id, bias) = read_bias(given)?;
            options.logit_bias.insert(id, bias);
        }
        options.seed = self.seed.unwrap_or_else(seed_from_clock);
        options.check().map_err(|error| CliError::Usage(error.to_string()))?;
        Ok(options)
    }
}

fn read_bias(given: &str) -> Result<(u32, f32), CliError> {
    let parts = given.split_once('=');
    let parsed = parts.and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| {
        CliError::Usage(format!("--logit-bias {given}: expected a token id, =, and a number, as in 13=-1.5"))
    })
}

/// A seed that is short to type again.
fn seed_from_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mixed = (now.as_nanos() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed >> 32
}
