//! `turbospark tokenize`: text to token ids and back.

use std::io::{Read, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use turbospark_formats::Checkpoint;
use turbospark_text::{Special, Tokenizer};

use crate::error::CliError;

/// Turn text into token ids, or ids into text
#[derive(Args)]
#[command(
    after_help = "Examples:\n  turbospark tokenize model.gguf \"Once upon a time\"\n  turbospark tokenize \
model.gguf --decode \"411 433 258\"\n  cat text.txt | turbospark tokenize model.gguf --json"
)]
pub struct Tokenize {
    /// A GGUF file, or a folder with tokenizer.json
    model: PathBuf,
    /// The text, or with --decode the ids; without it standard input
    text: Option<String>,
    /// The input is ids (a JSON list, or numbers separated by spaces or commas); print their text
    #[arg(long)]
    decode: bool,
    /// Take special tokens in the text for plain text
    #[arg(long, conflicts_with = "decode")]
    no_special: bool,
    /// Put the tokens that the model wants at a text's beginning first
    #[arg(long, conflicts_with = "decode")]
    bos: bool,
    /// Print JSON: ids and the text of each
    #[arg(long)]
    json: bool,
}

impl Tokenize {
    pub fn execute(&self) -> Result<(), CliError> {
        let tokenizer = Tokenizer::open(&Checkpoint::open(&self.model)?)?;
        let input = match &self.text {
            Some(text) => text.clone().into_bytes(),
            None => {
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes)?;
                bytes
            }
        };
        // Bytes that are not UTF-8 become U+FFFD: no vocabulary could give them back through text.
        let input = String::from_utf8_lossy(&input);
        let out = &mut std::io::stdout().lock();
        if self.decode {
            let ids = read_ids(&input)?;
            let text = tokenizer.decode_all(&ids)?;
            return match self.json {
                true => write_json(out, &json!({"ids": ids, "text": text})),
                false => Ok(writeln!(out, "{text}")?),
            };
        }
        let special = if self.no_special { Special::AsText } else { Special::Parse };
        let ids = match self.bos {
            true => tokenizer.encode_prompt(&input, special)?,
            false => tokenizer.encode(&input, special)?,
        };
        if self.json {
            let tokens: Vec<String> = ids.iter().map(|&id| tokenizer.token_name(id)).collect();
            return write_json(out, &json!({"ids": ids, "tokens": tokens}));
        }
        for id in ids {
            writeln!(out, "{id:8} {:?}", tokenizer.token_name(id))?;
        }
        Ok(())
    }
}

fn read_ids(input: &str) -> Result<Vec<u32>, CliError> {
    let numbers = input.trim().trim_start_matches('[').trim_end_matches(']');
    let words = numbers.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    words
        .map(|word| {
            let reason =
                || CliError::Usage(format!("{word:?} is not a token id; ids are whole numbers from 0"));
            word.parse().map_err(|_| reason())
        })
        .collect()
}

fn write_json(out: &mut impl Write, value: &Value) -> Result<(), CliError> {
    serde_json::to_writer(&mut *out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}
