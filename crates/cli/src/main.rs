//! The `turbospark` program.

mod bench;
mod capture;
mod chat;
mod error;
mod eval;
mod experts;
mod options;
mod pack;
mod plan;
mod printer;
mod prompts;
mod router_trace;
mod run;
mod sampling;
mod show;
mod steer;
mod steer_args;
mod terminal;
mod tokenize;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Run mixture-of-experts language models larger than memory
#[derive(Parser)]
#[command(name = "turbospark", version, about, arg_required_else_help = true)]
#[command(after_help = "Example:\n  turbospark run \"Tell me a story about a fox and a lantern.\"")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Chat(chat::ChatArgs),
    Show(show::Show),
    Tokenize(tokenize::Tokenize),
    Plan(plan::Plan),
    Bench(bench::BenchArgs),
    Capture(capture::CaptureArgs),
    Pack(pack::PackArgs),
    Verify(verify::VerifyArgs),
    #[command(subcommand)]
    Experts(experts::ExpertsCommand),
    #[command(subcommand)]
    Steer(steer::SteerCommand),
    #[command(subcommand)]
    Eval(eval::Eval),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(run) => run.execute(),
        Command::Chat(chat) => chat.execute(),
        Command::Show(show) => show.execute(),
        Command::Tokenize(tokenize) => tokenize.execute(),
        Command::Plan(plan) => plan.execute(),
        Command::Bench(bench) => bench.execute(),
        Command::Capture(capture) => capture.execute(),
        Command::Experts(experts) => experts.execute(),
        Command::Pack(pack) => pack.execute(),
        Command::Verify(verify) => verify.execute(),
        Command::Steer(steer) => steer.execute(),
        Command::Eval(eval) => eval.execute(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough (head, less) is no failure.
        Err(error::CliError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.status())
        }
    }
}
