//! `cargo xtask conformance`: the suites that every backend must pass.

use std::ffi::OsString;

use botmesh_test_servers::{Cluster, Options, Persistence, REDIS_URL, Redis};

use crate::shell::Invocation;
use crate::workspace::Workspace;

/// The environment variable that names a Cluster to use instead of starting one.
const CLUSTER_URL: &str = "BOTMESH_REDIS_CLUSTER_URL";

/// Run the suites that every backend must pass, and print the matrix
///
/// BACKEND is memory, file, sqlite, redis or redis-cluster; with no name, all of them but redis-cluster run. A name that is
/// unknown or not built yet is an error. For redis, the server at the URL in BOTMESH_REDIS_URL is used, or else a private
/// one started from the redis-server on the PATH, which syncs each write; for redis-cluster, BOTMESH_REDIS_CLUSTER_URL or
/// three private nodes. The arguments go unchanged to the `conformance` binary of botmesh-conformance;
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

/// Runs with private servers where none are given.
pub(crate) fn run_with(workspace: &Workspace, args: &[OsString]) -> Result<(), String> {
    let mut invocation = invocation(args);
    let one = private(args, "redis", REDIS_URL, || Redis::start(&synced()))?;
    if let Some(redis) = &one {
        invocation = invocation.with_env(REDIS_URL, redis.url());
    }
    let cluster = private(args, "redis-cluster", CLUSTER_URL, || Cluster::start(&synced(), 3, 0))?;
    if let Some(cluster) = &cluster {
        invocation = invocation.with_env(CLUSTER_URL, cluster.url());
    }
    invocation.run(&workspace.root)
}

fn synced() -> Options {
    Options::new().with_persistence(Persistence::Always)
}

/// A server for this run, if it needs one and none is given.
fn private<S>(
    args: &[OsString],
    backend: &str,
    variable: &str,
    start: impl FnOnce() -> botmesh_test_servers::Result<S>,
) -> Result<Option<S>, String> {
    if !needs(args, backend) || std::env::var_os(variable).is_some_and(|url| !url.is_empty()) {
        return Ok(None);
    }
    match start() {
        Ok(server) => Ok(Some(server)),
        Err(_) if may_miss(args, backend) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn needs(args: &[OsString], backend: &str) -> bool {
    let has = |names: &[&str]| args.iter().any(|arg| names.iter().any(|name| arg == name));
    let by_default =
        backend == "redis" && !has(&["memory", "file", "sqlite", "redis-cluster", "--list", "--help", "-h"]);
    has(&[backend]) || by_default
}

fn may_miss(args: &[OsString], backend: &str) -> bool {
    args.windows(2).any(|pair| pair[0] == "--allow-missing" && pair[1] == backend)
        || args.iter().any(|arg| *arg == *format!("--allow-missing={backend}"))
}

pub(crate) fn invocation(args: &[OsString]) -> Invocation {
    let fixed = ["run", "--package", "botmesh-conformance", "--bin", "conformance", "--"];
    Invocation::cargo(fixed.into_iter().map(OsString::from).chain(args.iter().cloned()))
}

#[cfg(test)]
mod tests;
