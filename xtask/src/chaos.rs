//! `cargo xtask chaos`: real replicas under random faults.

use std::ffi::OsString;

use crate::shell::Invocation;
use crate::workspace::Workspace;

/// Hit real replicas with random faults, and check what they did; `--help` shows the arguments
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    override_usage = "cargo xtask chaos [--minutes M] [--seed N] [--server SERVER]\n       cargo xtask chaos --mutations [--only NAME]"
)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<(), String> {
    run_with(workspace, &args.args)
}

pub(crate) fn run_with(workspace: &Workspace, args: &[OsString]) -> Result<(), String> {
    // The replicas are another program of the package.
    Invocation::cargo(["build", "--quiet", "--package", "botmesh-nemesis", "--bins"]).run(&workspace.root)?;
    invocation(args).run(&workspace.root)
}

/// Removes each rule of the turns once, in place of random faults.
const MUTATIONS: &str = "--mutations";

pub(crate) fn invocation(args: &[OsString]) -> Invocation {
    let mutations = args.iter().any(|arg| arg == MUTATIONS);
    let program = if mutations { "nemesis-mutations" } else { "chaos" };
    let fixed = ["run", "--quiet", "--package", "botmesh-nemesis", "--bin", program, "--"];
    let args = args.iter().filter(|arg| *arg != MUTATIONS).cloned();
    Invocation::cargo(fixed.into_iter().map(OsString::from).chain(args))
}
