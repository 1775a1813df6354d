//! `turbospark verify`: whether a packed store is as it was written.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use turbospark_engine::pack::verify;

use crate::error::CliError;
use crate::terminal::{Bar, bytes};

/// Compare a packed store with its digests and name everything that is damaged
#[derive(Args)]
#[command(
    after_help = "The status is 1 if something is damaged, missing or cut. Files that the store does not have are named, \
and nothing reads them.\n\nExample:\n  turbospark verify gpt-oss-20b.packed"
)]
pub struct VerifyArgs {
    /// The store's folder
    store: PathBuf,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

impl VerifyArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let bar = Bar::bytes("checking");
        let found = verify(&self.store, threads, &|done, total| bar.set_of(done, total));
        let found = found.map_err(turbospark_formats::OpenError::from)?;
        drop(bar);
        if self.json {
            let damage: Vec<_> = found.damage.iter().map(|damage| {
                json!({"file": damage.file, "tensor": damage.tensor, "damage": damage.to_string()})
            }).collect();
            let (files, bytes) = (found.files, found.bytes);
            println!("{:#}", json!({"files": files, "bytes": bytes, "damage": damage, "extra": found.extra}));
        } else {
            for damage in &found.damage {
                println!("{damage}");
            }
            for extra in &found.extra {
                println!("{extra}: not of the store; nothing reads it");
            }
        }
        match found.damage.len() {
            0 if self.json => Ok(()),
            0 => {
                println!("{} files, {}: all as written", found.files, bytes(found.bytes as usize));
                Ok(())
            }
            count => Err(CliError::file(
                &self.store,
                format!(
                    "{count} of its parts are damaged; `turbospark pack MODEL -o` it again writes those anew"
                ),
            )),
        }
    }
}
