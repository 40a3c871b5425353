//! `cargo xtask simulate`: random runs of several replicas in virtual time.

use std::num::NonZeroU64;

use crate::shell::Invocation;
use crate::workspace::Workspace;

/// The variable by which the test is told which seeds to run.
const SEEDS: &str = "BOTMESH_SIMULATE";

/// Simulate three replicas of a bot: messages, crashes, standstills, deploys and timers at random, in virtual time
///
/// The test command does it for 1,000 seeds. A failure prints its seed and everything that happened; the same seed does the
/// same again.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds
    #[arg(long, value_name = "N", default_value = "1000")]
    seeds: NonZeroU64,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Only this one
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<(), String> {
    invocation(args).run(&workspace.root)
}

fn invocation(args: &Args) -> Invocation {
    let (from, count) = args.seed.map_or((args.from, args.seeds.get()), |seed| (seed, 1));
    let test = ["test", "--package", "botmesh", "--test", "simulation", "--", "--nocapture"];
    Invocation::cargo(test).with_env(SEEDS, format!("{from}..{}", from.saturating_add(count)))
}
