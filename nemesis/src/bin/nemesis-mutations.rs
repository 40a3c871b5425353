//! `nemesis-mutations`: removes each rule of the turns once and shows what the check found.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use botmesh_nemesis::mutations::{ALL, Mutation};
use clap::Parser;
use futures_util::future::join_all;

/// Remove each rule of the turns once, on a real server, with the fault that it is there for
///
/// Without the rule the check must find the invariant that breaks; with it, the same fault must leave nothing to find.
#[derive(Parser)]
#[command(name = "nemesis-mutations", bin_name = "cargo xtask chaos --mutations")]
struct Args {
    /// Only these
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    only: Vec<String>,
    /// Keep the histories in this folder
    #[arg(long, value_name = "FOLDER", default_value = "target/chaos/mutations")]
    keep: PathBuf,
    /// Show what there is, and run nothing
    #[arg(long)]
    list: bool,
}

/// How many are played at once; they mostly wait.
const AT_ONCE: usize = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for mutation in ALL {
            println!("{:<9} {:<15} {}", mutation.name, mutation.breaks.to_string(), mutation.says);
        }
        return ExitCode::SUCCESS;
    }
    let chosen =
        |mutation: &&Mutation| args.only.is_empty() || args.only.iter().any(|name| name == mutation.name);
    let chosen: Vec<_> = ALL.iter().filter(chosen).collect();
    if chosen.is_empty() {
        eprintln!("error: none has such a name; --list shows them");
        return ExitCode::FAILURE;
    }
    println!("{:<9} {:<15} {:<28} with the rule", "rule", "must break", "without the rule");
    let mut good = true;
    for some in chosen.chunks(AT_ONCE) {
        for row in join_all(some.iter().map(|mutation| row(mutation, &args.keep))).await {
            good &= row;
        }
    }
    if good {
        println!("each rule that was removed was missed");
        return ExitCode::SUCCESS;
    }
    println!("the histories are in {}; nemesis-check FOLDER reads them", args.keep.display());
    ExitCode::FAILURE
}

/// Plays one and prints its line. Whether it went as it should.
async fn row(mutation: &Mutation, keep: &Path) -> bool {
    let folders = ["without", "with"].map(|name| keep.join(mutation.name).join(name));
    for folder in &folders {
        // What an earlier run left.
        drop(std::fs::remove_dir_all(folder));
    }
    let (without, with) = tokio::join!(mutation.run(true, &folders[0]), mutation.run(false, &folders[1]));
    let (found, without, missed) = match &without {
        Ok(report) => {
            let broken: Vec<_> = report.broken().iter().map(|invariant| format!("{invariant:?}")).collect();
            let missed = !report.broken().contains(&mutation.breaks);
            (broken.join(" "), report.to_string(), missed)
        }
        Err(error) => (error.to_string(), String::new(), true),
    };
    let (clean, alarm) = match &with {
        Ok(report) if report.is_clean() => ("clean".to_owned(), String::new()),
        Ok(report) => ("FALSE ALARM".to_owned(), report.to_string()),
        Err(error) => (error.to_string(), String::new()),
    };
    let found = if missed { format!("NOT FOUND {found}") } else { found };
    println!("{:<9} {:<15} {found:<28} {clean}", mutation.name, mutation.breaks.to_string());
    if missed {
        println!("{without}");
    }
    print!("{alarm}");
    !missed && clean == "clean"
}
