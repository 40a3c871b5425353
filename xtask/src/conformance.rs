//! `cargo xtask conformance`: the suites that every backend must pass.

use std::ffi::OsString;

use crate::shell::Invocation;
use crate::workspace::Workspace;

/// Run the suites that every backend must pass, and print the matrix
///
/// BACKEND is memory, file or sqlite; with no name, all backends that need no server run. A name that is unknown or
/// not built yet is an error. The arguments go unchanged to the `conformance` binary of botmesh-conformance;
/// `cargo xtask conformance -- --help` shows what else it takes.
///
///   --suite NAME             only this suite
///   --seed N                 the seed of the random cases; a failure prints the one it used
///   --rounds N               try so many places for each write and fault of the suite `crash`
///   --certificate PATH       also write what the suite `crash` showed to PATH.md and PATH.json
///   --allow-missing BACKEND  show this backend as not run, instead of failing, when its server cannot be found
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    override_usage = "cargo xtask conformance [BACKEND…] [--suite NAME] [--seed N] [--allow-missing BACKEND]"
)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<(), String> {
    invocation(&args.args).run(&workspace.root)
}

pub(crate) fn invocation(args: &[OsString]) -> Invocation {
    let fixed = ["run", "--package", "botmesh-conformance", "--bin", "conformance", "--"];
    Invocation::cargo(fixed.into_iter().map(OsString::from).chain(args.iter().cloned()))
}
