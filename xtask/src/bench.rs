//! `cargo xtask bench`: one benchmark by its name.

use std::ffi::OsString;

use crate::shell::Invocation;
use crate::workspace::Workspace;

/// Run one benchmark, wherever in the workspace it lives.
#[derive(clap::Args)]
#[command(override_usage = "cargo xtask bench NAME [-- ARGS…]\n       cargo xtask bench --list")]
pub(crate) struct Args {
    /// The benchmark's name; `--list` shows them
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Show the benchmarks there are
    #[arg(long, exclusive = true)]
    list: bool,
    /// What the benchmark itself is given
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<(), String> {
    let Some(name) = &args.name else {
        for (package, bench) in benches(workspace) {
            println!("{bench}  ({package})");
        }
        return Ok(());
    };
    let package = owner(workspace, name)?;
    let fixed = ["bench", "--package", package, "--bench", name, "--"];
    let invocation =
        Invocation::cargo(fixed.into_iter().map(OsString::from).chain(args.args.iter().cloned()));
    println!("{invocation}");
    invocation.run(&workspace.root)
}

fn benches(workspace: &Workspace) -> Vec<(&str, &str)> {
    let packages = workspace.packages.iter();
    packages.flat_map(|p| p.benches.iter().map(|bench| (p.name.as_str(), bench.as_str()))).collect()
}

fn owner<'a>(workspace: &'a Workspace, name: &str) -> Result<&'a str, String> {
    let all = benches(workspace);
    if let Some((package, _)) = all.iter().find(|(_, bench)| *bench == name) {
        return Ok(package);
    }
    let known: Vec<_> = all.iter().map(|(_, bench)| *bench).collect();
    let known = if known.is_empty() { "none yet".into() } else { known.join(", ") };
    Err(format!("no benchmark is called `{name}`; there is: {known}"))
}

#[cfg(test)]
mod tests;
