//! The project's only scripts: `cargo xtask COMMAND`, one module for each command.

mod bench;
mod chaos;
mod conformance;
mod deny;
mod shell;
mod simulate;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use workspace::Workspace;

/// The scripts of the botmesh workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Test(test::Args),
    Conformance(conformance::Args),
    Simulate(simulate::Args),
    Chaos(chaos::Args),
    Bench(bench::Args),
    Tidy(tidy::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = Workspace::load().and_then(|workspace| match cli.command {
        Command::Test(args) => test::run(&workspace, &args),
        Command::Conformance(args) => conformance::run(&workspace, &args).map(|()| ExitCode::SUCCESS),
        Command::Simulate(args) => simulate::run(&workspace, &args).map(|()| ExitCode::SUCCESS),
        Command::Chaos(args) => chaos::run(&workspace, &args).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => bench::run(&workspace, &args).map(|()| ExitCode::SUCCESS),
        Command::Tidy(_) => tidy::check(&workspace).map(|()| ExitCode::SUCCESS),
    });
    match outcome {
        Ok(code) => code,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
