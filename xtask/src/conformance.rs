//! `cargo xtask conformance`: the suites that every backend must pass.

use std::ffi::OsString;

use botmesh_test_servers::{Options, Persistence, REDIS_URL, Redis};

use crate::shell::Invocation;
use crate::workspace::Workspace;

/// Run the suites that every backend must pass, and print the matrix
///
/// BACKEND is memory, file, sqlite or redis; with no name, all of them run. A name that is unknown or not built yet is an
/// error. For redis, the server at the URL in BOTMESH_REDIS_URL is used, or else a private one started from the
/// redis-server on the PATH, which syncs each write. The arguments go unchanged to the `conformance` binary of botmesh-conformance;
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
    run_with(workspace, &args.args)
}

pub(crate) fn run_with(workspace: &Workspace, args: &[OsString]) -> Result<(), String> {
    let given = std::env::var_os(REDIS_URL).is_some_and(|url| !url.is_empty());
    let redis = if given { None } else { private_redis(args)? };
    let invocation = invocation(args);
    match &redis {
        Some(redis) => invocation.with_env(REDIS_URL, redis.url()).run(&workspace.root),
        None => invocation.run(&workspace.root),
    }
}

/// A server for this run, if it needs one.
fn private_redis(args: &[OsString]) -> Result<Option<Redis>, String> {
    if !needs_redis(args) {
        return Ok(None);
    }
    match Redis::start(&Options::new().with_persistence(Persistence::Always)) {
        Ok(redis) => Ok(Some(redis)),
        Err(_) if may_miss_redis(args) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn needs_redis(args: &[OsString]) -> bool {
    let has = |names: &[&str]| args.iter().any(|arg| names.iter().any(|name| arg == name));
    has(&["redis"]) || !has(&["memory", "file", "sqlite", "--list", "--help", "-h"])
}

fn may_miss_redis(args: &[OsString]) -> bool {
    args.windows(2).any(|pair| pair[0] == "--allow-missing" && pair[1] == "redis")
        || args.iter().any(|arg| arg == "--allow-missing=redis")
}

pub(crate) fn invocation(args: &[OsString]) -> Invocation {
    let fixed = ["run", "--package", "botmesh-conformance", "--bin", "conformance", "--"];
    Invocation::cargo(fixed.into_iter().map(OsString::from).chain(args.iter().cloned()))
}

#[cfg(test)]
mod tests;
