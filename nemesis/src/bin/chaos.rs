//! Replicas under random faults, on one kind of server after the other, and the check of what happened.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use botmesh_core::entropy::{Entropy as _, OsEntropy};
use botmesh_nemesis::history::Fault;
use botmesh_nemesis::replica::Mode;
use botmesh_nemesis::world::{Failure, Options, Plan, ServerKind, World};
use clap::Parser;

/// Hit the replicas of a bot, which are real processes, with random faults, and check what they did
///
/// Replicas are killed, stand still and are started again; their networks are cut, slow and lossy; servers fail over, stand still,
/// fill up and lose their data. All of it follows from the seed, but when it hits what depends on the machine: the same seed
/// gives similar runs, not the same ones. Whoever breaks a promise is shown with the history, which is kept.
///
/// With `--mutations`, each rule of the turns is removed once instead, and must be missed; see `--mutations --help`.
#[derive(Parser)]
#[command(name = "chaos", bin_name = "cargo xtask chaos")]
struct Args {
    /// For how long faults happen, over all runs
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// The seed of the faults; by default another one each time
    #[arg(long)]
    seed: Option<u64>,
    /// Only runs on this kind of server
    #[arg(long, value_enum)]
    server: Option<ServerKind>,
    /// Only runs of this kind of replica: `bare` takes turns, `bot` runs a bot
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// How many replicas
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Their lease, in milliseconds; at least 1000
    #[arg(long, default_value_t = 1000)]
    lease: u64,
    /// How many chats there are
    #[arg(long, default_value_t = 20)]
    chats: u64,
    /// Only these faults, such as `kill,flushall`
    #[arg(long, value_name = "FAULT[,FAULT]", value_delimiter = ',', value_parser = fault)]
    only: Vec<Fault>,
    /// Keep the histories also of runs in which no promise was broken
    #[arg(long)]
    keep: bool,
    /// Where the histories go
    #[arg(long, value_name = "FOLDER", default_value = "target/chaos")]
    folder: PathBuf,
}

/// A run: on which servers, what the replicas do, and its part of the time.
type Leg = (ServerKind, Mode, u32);

const LEGS: &[Leg] = &[
    (ServerKind::Redis, Mode::Bare, 3),
    (ServerKind::Redis, Mode::Bot, 3),
    (ServerKind::Sentinel, Mode::Bare, 2),
    (ServerKind::Sentinel, Mode::Bot, 1),
    (ServerKind::Cluster, Mode::Bare, 2),
    (ServerKind::Cluster, Mode::Bot, 2),
];

fn fault(name: &str) -> Result<Fault, String> {
    serde_json::from_value(name.replace('-', "_").into()).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| OsEntropy::new().next_u64() % 1_000_000);
    let legs = LEGS.iter().filter(|(server, mode, _)| {
        args.server.is_none_or(|only| only == *server) && args.mode.is_none_or(|only| only == *mode)
    });
    let legs = legs.collect::<Vec<_>>();
    let parts: u32 = legs.iter().map(|(_, _, part)| part).sum();
    if parts == 0 {
        eprintln!("error: there is no run of this kind of replica on this kind of server");
        return ExitCode::FAILURE;
    }
    for leg in &legs {
        let minutes = args.minutes * f64::from(leg.2) / f64::from(parts);
        println!("{}: {:.0} s of faults, seed {seed}", name(leg), minutes * 60.0);
        if let Err(error) = run(&args, leg, seed, Duration::from_secs_f64(minutes * 60.0)) {
            eprintln!(
                "{}: FAILED: {error}\nto run it again: {}",
                name(leg),
                command(&args, leg, seed, minutes)
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn name((server, mode, _): &Leg) -> String {
    format!("{server:?} {mode:?}").to_lowercase()
}

/// What runs just this again.
fn command(args: &Args, (server, mode, _): &Leg, seed: u64, minutes: f64) -> String {
    let lower = |what: &dyn std::fmt::Debug| format!("{what:?}").to_lowercase();
    let mut command = format!(
        "cargo xtask chaos --seed {seed} --minutes {minutes:.2} --server {} --mode {} --replicas {} --lease {} --chats {}",
        lower(server),
        lower(mode),
        args.replicas,
        args.lease,
        args.chats
    );
    if !args.only.is_empty() {
        let only =
            args.only.iter().filter_map(|fault| Some(serde_json::to_value(fault).ok()?.as_str()?.to_owned()));
        // Writing to a text does not fail.
        let _ = write!(command, " --only {}", only.collect::<Vec<_>>().join(","));
    }
    command
}

fn run(args: &Args, leg: &Leg, seed: u64, faults_for: Duration) -> Result<(), Failure> {
    let (server, mode, _) = *leg;
    let program = std::env::current_exe()?.with_file_name("nemesis-replica");
    let options = Options {
        server,
        mode,
        replicas: args.replicas.max(1),
        lease: Duration::from_millis(args.lease),
        chats: args.chats.max(1),
        ..Options::new(program, &args.folder, seed)
    };
    let world = World::new(options)?;
    let plan = Plan {
        faults_for,
        only: args.only.clone(),
        rests: (Duration::from_millis(1500), Duration::from_millis(2500)),
        // Until nothing is left of the faults, and then as long as it takes to see what turns cost without them.
        quiet_for: Duration::from_millis(args.lease) * 2 + Duration::from_secs(2),
    };
    let progress = world.run(&plan, |world, progress| println!("  {}", world.shown(progress)));
    let outcome = progress.and_then(|progress| {
        println!("  {}", world.shown(progress));
        world.verdict()
    });
    let folder = world.folder().to_owned();
    drop(world);
    match outcome {
        Ok(summary) => {
            println!("{summary}");
            if !args.keep {
                fs::remove_dir_all(&folder)?;
            }
            Ok(())
        }
        Err(error) => Err(format!("{error}\nthe histories are in {}", folder.display()).into()),
    }
}
