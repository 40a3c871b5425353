//! A replica: a real process with a coordinator, alone or under a whole bot, that writes down what happens to it.

mod bare;
mod channel;
mod connection;
mod whole;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use botmesh::TokioSpawner;
use botmesh_core::entropy::{SeededEntropy, random_fraction};
use botmesh_core::id::SessionId;
use botmesh_core::spawn::Seams;
use botmesh_redis_store::{RedisConfig, RedisCoordinator, RedisCoordinatorConfig};
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::history::{Event, Metronome, Recorder};

/// One replica under the nemesis. The world starts it; it ends cleanly at SIGTERM.
#[derive(Clone, Debug, Parser)]
#[command(name = "nemesis-replica")]
pub struct Args {
    /// Its name
    #[arg(long)]
    pub name: String,
    /// The id that a bot has among the replicas; by default the name
    #[arg(long)]
    pub replica_id: Option<String>,
    /// What it does
    #[arg(long, value_enum, default_value_t = Mode::Bare)]
    pub mode: Mode,
    /// The folder of its history
    #[arg(long)]
    pub history: PathBuf,
    /// Where the world listens
    #[arg(long)]
    pub world: SocketAddr,
    /// The Redis server
    #[arg(long)]
    pub redis: String,
    /// The prefix of the keys
    #[arg(long, default_value = "nemesis")]
    pub prefix: String,
    /// The lease, in milliseconds
    #[arg(long, default_value_t = 1000)]
    pub lease: u64,
    /// How long a ticket waits at most, in milliseconds
    #[arg(long, default_value_t = 30_000)]
    pub turn_wait: u64,
    /// How many chats there are
    #[arg(long, default_value_t = 20)]
    pub chats: u64,
    /// How many visits to chats go on at the same time
    #[arg(long, default_value_t = 8)]
    pub lanes: u64,
    /// The longest rest between two visits of a lane, in milliseconds
    #[arg(long, default_value_t = 40)]
    pub rest: u64,
    /// The longest time between two writes under a turn, in milliseconds
    #[arg(long, default_value_t = 20)]
    pub hold: u64,
    /// How many visits of a hundred give up before they have their turn
    #[arg(long, default_value_t = 5)]
    pub cancel: u64,
    /// How many visits of a hundred are several calls at once, one after the other
    #[arg(long, default_value_t = 10)]
    pub bursts: u64,
    /// How many visits of a hundred keep their turn for longer than a lease
    #[arg(long, default_value_t = 1)]
    pub long: u64,
    /// What it visits to see that nothing is left there
    #[arg(long)]
    pub visit: Vec<String>,
    /// The seed of what is random in it
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How often it was started before
    #[arg(long, default_value_t = 0)]
    pub life: u64,
}

/// What a replica does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Takes turns of random chats and writes to the resource under them.
    Bare,
    /// Visits some queues once and ends.
    Sweep,
    /// Runs a bot whose channel permits one connection.
    Bot,
}

/// What the log of a bot says before it runs.
pub(crate) const BEGINS: &str = "the bot begins";

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the parts of a replica share.
struct Replica {
    args: Args,
    history: Arc<Recorder>,
    seams: Seams,
    known: Mutex<HashSet<SessionId>>,
    /// The end was asked for.
    stop: CancellationToken,
}

impl Replica {
    fn tell(&self, event: Event) {
        self.history.record(event);
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.args.lease)
    }

    async fn sleep(&self, duration: Duration) {
        self.seams.clock.sleep(duration).await;
    }

    /// Writes a session down before anything that it does.
    fn saw(&self, session: &SessionId) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.insert(session.clone()) {
            self.tell(Event::Session { sid: session.to_string(), epoch: None });
        }
    }

    /// A coordinator, as soon as the server lets one in; `None` if the end was asked for before.
    async fn connect(&self) -> Option<RedisCoordinator> {
        let connection = RedisConfig::default()
            .with_prefix(&self.args.prefix)
            .with_connect_timeout(Duration::from_secs(1))
            .with_command_timeout(Duration::from_secs(1));
        let config = RedisCoordinatorConfig::default()
            .with_lease(self.lease())
            .with_turn_wait(Duration::from_millis(self.args.turn_wait));
        self.until_it_works(async || {
            RedisCoordinator::connect_with(&self.args.redis, connection.clone(), config.clone()).await
        })
        .await
    }

    async fn until_it_works<T, E: std::fmt::Display>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, E>,
    ) -> Option<T> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                outcome = attempt() => match outcome {
                    Ok(value) => return Some(value),
                    Err(error) => tracing::warn!(%error, "it is tried again"),
                },
            }
            self.sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Random numbers of one lane.
struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, end: u64) -> u64 {
        (random_fraction(&self.0) * end as f64) as u64
    }

    fn percent(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn up_to(&self, millis: u64) -> Duration {
        Duration::from_micros(self.below(millis * 1000 + 1))
    }
}

/// Runs a replica until it is asked to end.
///
/// # Errors
/// The world or the history cannot be reached, or the bot failed.
pub fn run(args: Args) -> Result<(), Failure> {
    // A world that dies takes its replicas with it, also those that stand still.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(live(args))
}

async fn live(args: Args) -> Result<(), Failure> {
    let history = Arc::new(Recorder::create(&args.history, &args.name)?);
    let _metronome = Metronome::start(Arc::clone(&history))?;
    let replica = Arc::new(Replica {
        args,
        history,
        seams: Seams::system(Arc::new(TokioSpawner)),
        known: Mutex::default(),
        stop: CancellationToken::new(),
    });
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = replica.stop.clone();
    replica.seams.spawn("terminate", async move {
        terminate.recv().await;
        stop.cancel();
    });
    match replica.args.mode {
        Mode::Bare => bare::run(&replica).await?,
        Mode::Sweep => bare::sweep(&replica).await?,
        Mode::Bot => whole::run(&replica).await?,
    }
    replica.tell(Event::Down { clean: true });
    Ok(())
}

impl Args {
    fn seed(&self) -> u64 {
        self.seed.wrapping_mul(1009).wrapping_add(self.life)
    }
}
