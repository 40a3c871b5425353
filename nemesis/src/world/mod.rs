//! The world of a run: servers, a provider, and replicas that are real processes.

mod faults;
mod process;
mod provider;
mod real;
mod schedule;
pub(crate) mod servers;
mod verdict;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::process::{Process, Spec};
pub use self::provider::{Last, Provider};
pub use self::schedule::{Plan, Progress};
pub use self::servers::ServerKind;
use self::servers::Servers;
use crate::check;
use crate::history::{self, Config, Event, Metronome, Record, Recorder};
use crate::replica::{BEGINS, Mode};

/// What goes wrong in the world itself, in words for whoever runs it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long a replica that is asked to end may take. Far more than it needs, also on a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How a world is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program of the replicas.
    pub program: PathBuf,
    /// Where the histories and logs go; a new folder within.
    pub folder: PathBuf,
    /// The seed of everything that is random here.
    pub seed: u64,
    /// Which servers.
    pub server: ServerKind,
    /// What the replicas do.
    pub mode: Mode,
    /// How many there are.
    pub replicas: usize,
    /// Their lease.
    pub lease: Duration,
    /// How many chats there are.
    pub chats: u64,
    /// Further arguments of each replica.
    pub args: Vec<String>,
}

impl Options {
    /// Three bare replicas on one server, with the shortest lease.
    pub fn new(program: impl Into<PathBuf>, folder: impl Into<PathBuf>, seed: u64) -> Self {
        Self {
            program: program.into(),
            folder: folder.into(),
            seed,
            server: ServerKind::Redis,
            mode: Mode::Bare,
            replicas: 3,
            lease: Duration::from_secs(1),
            chats: 20,
            args: Vec::new(),
        }
    }

    fn margin(&self) -> Duration {
        (self.lease / 10).max(Duration::from_millis(200))
    }
}

/// Servers, provider and replicas. All end when it is dropped; the histories stay.
pub struct World {
    /// How it was made.
    pub options: Options,
    folder: PathBuf,
    history: Arc<Recorder>,
    /// What the replicas act upon.
    pub provider: Provider,
    servers: Servers,
    replicas: Vec<Mutex<Replica>>,
    /// From when to when journals may have lost what they acknowledged; without an end as long as there is none.
    losses: Mutex<Vec<(u64, Option<u64>)>>,
    _metronome: Metronome,
}

/// A replica, whether or not it runs at the moment.
struct Replica {
    name: String,
    spec: Spec,
    process: Option<Process>,
    starts: u32,
}

impl Replica {
    fn has_begun(&self, folder: &Path, pid: u32) -> bool {
        let records = history::read_file(&folder.join(format!("{}-{pid}.jsonl", self.name)));
        records.unwrap_or_default().iter().any(|record| matches!(record.event, Event::Up { .. }))
    }

    /// A bot may end by itself for two reasons: others have taken over what it owned, or it found no server when it began.
    fn may_end(&self, status: ExitStatus) -> Result<(), Failure> {
        let log = fs::read_to_string(&self.spec.log)?;
        match log.rsplit(BEGINS).next() {
            Some(life) if life.contains("durability:superseded") => Ok(()),
            Some(life) if life != log && !life.contains("event=\"started\"") => Ok(()),
            _ => Err(format!("{} ended with {status}; see {}", self.name, self.spec.log.display()).into()),
        }
    }
}

impl World {
    /// Starts the servers. Replicas are started by [`start`](Self::start).
    ///
    /// # Errors
    /// A server cannot be started, or the folder cannot be made.
    pub fn new(options: Options) -> Result<Self, Failure> {
        let folder = options.folder.join(
            format!("{:?}-{:?}-{}-{}", options.server, options.mode, options.seed, std::process::id())
                .to_lowercase(),
        );
        fs::create_dir_all(&folder)?;
        let history = Arc::new(Recorder::create(&folder, "harness")?);
        let servers = Servers::start(options.server, options.replicas)?;
        let provider = Provider::start(Arc::clone(&history))?;
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let config = Config {
            lease_ms: millis(options.lease),
            margin_ms: millis(options.margin()),
            idle_ttl_ms: 600_000,
            turn_wait_ms: 30_000,
        };
        history.record(Event::Start { seed: options.seed, config });
        let _metronome = Metronome::start(Arc::clone(&history))?;
        let mut world = Self {
            folder,
            history,
            provider,
            servers,
            replicas: Vec::new(),
            losses: Mutex::default(),
            options,
            _metronome,
        };
        for number in 0..world.options.replicas {
            let replica = world.replica(&format!("r{number}"), number, world.options.mode);
            world.replicas.push(Mutex::new(replica));
        }
        Ok(world)
    }

    /// Where the histories are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn replica(&self, name: &str, number: usize, mode: Mode) -> Replica {
        let options = &self.options;
        let mode = match mode {
            Mode::Bare => "bare",
            Mode::Sweep => "sweep",
            Mode::Bot => "bot",
        };
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        let mut args = Vec::new();
        for (flag, value) in [
            ("--name", name.to_owned()),
            ("--mode", mode.to_owned()),
            ("--history", self.folder.display().to_string()),
            ("--world", self.provider.address().to_string()),
            ("--redis", self.servers.url(number)),
            ("--lease", options.lease.as_millis().to_string()),
            ("--chats", options.chats.to_string()),
            ("--seed", seed.to_string()),
        ] {
            args.extend([flag.to_owned(), value]);
        }
        args.extend(options.args.iter().cloned());
        let log = self.folder.join(format!("{name}.log"));
        let spec = Spec { program: options.program.clone(), args, log };
        Replica { name: name.to_owned(), spec, process: None, starts: 0 }
    }

    fn at(&self, number: usize) -> MutexGuard<'_, Replica> {
        self.replicas[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name in histories.
    pub fn name(&self, number: usize) -> String {
        self.at(number).name.clone()
    }

    /// Its process, if it runs.
    pub fn pid(&self, number: usize) -> Option<u32> {
        self.at(number).process.as_ref().map(Process::id)
    }

    /// Starts a replica, if it does not run. The calling thread must live as long as the process.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&self, number: usize) -> io::Result<()> {
        let mut replica = self.at(number);
        if replica.process.is_none() {
            let mut spec = replica.spec.clone();
            // Each start has other dice.
            spec.args.extend(["--life".to_owned(), replica.starts.to_string()]);
            replica.process = Some(Process::start(&spec)?);
            replica.starts += 1;
        }
        Ok(())
    }

    /// Starts all of them.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_all(&self) -> io::Result<()> {
        (0..self.replicas.len()).try_for_each(|number| self.start(number))
    }

    /// What has been written down so far.
    ///
    /// # Errors
    /// A history cannot be read.
    pub fn records(&self) -> io::Result<Vec<Record>> {
        history::read(&self.folder)
    }

    /// What one process has written down so far.
    ///
    /// # Errors
    /// Its history cannot be read.
    pub fn records_of(&self, number: usize, pid: u32) -> io::Result<Vec<Record>> {
        history::read_file(&self.folder.join(format!("{}-{pid}.jsonl", self.name(number))))
    }

    /// What a replica says of itself.
    pub fn log(&self, number: usize) -> String {
        fs::read_to_string(&self.at(number).spec.log).unwrap_or_default()
    }

    /// Waits until something holds, two minutes at most. Replicas that end by themselves meanwhile are started again.
    ///
    /// # Errors
    /// It does not hold in that time.
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Result<(), Failure> {
        let limit = Duration::from_secs(120);
        let mut failed = None;
        let held = real::within(limit, || {
            failed = self.revive().err();
            failed.is_some() || holds(self)
        });
        match failed {
            Some(error) => Err(error),
            None if held => Ok(()),
            None => Err(format!("{what}: not within {limit:?}").into()),
        }
    }

    /// Writes a fault down. What begins is told before it begins, what ends after.
    fn tell(
        &self,
        what: history::Fault,
        target: Option<usize>,
        lasts: Option<Duration>,
        detail: Option<String>,
    ) {
        let until_t =
            lasts.map(|lasts| history::now() + u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX / 2));
        let (target, target_pid) = match target {
            Some(number) => {
                let replica = self.at(number);
                (Some(replica.name.clone()), replica.process.as_ref().map(Process::id))
            }
            None => (None, None),
        };
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        if what.loses_records() {
            losses.push((history::now(), until_t));
        } else if what == history::Fault::SplitHealed {
            losses.iter_mut().for_each(|(_, to)| *to = to.or(Some(history::now())));
        }
        drop(losses);
        self.history.record(Event::Nemesis { what, target, target_pid, detail, until_t });
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn kill(&self, number: usize) -> io::Result<()> {
        self.tell(history::Fault::Kill, Some(number), None, None);
        match self.at(number).process.take() {
            Some(mut process) => process.kill(),
            None => Ok(()),
        }
    }

    /// SIGSTOP.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn stop(&self, number: usize) -> io::Result<()> {
        self.tell(history::Fault::Stop, Some(number), None, None);
        self.at(number).process.as_mut().map_or(Ok(()), Process::stop)
    }

    /// SIGCONT, if it stands still.
    ///
    /// # Errors
    /// The signal cannot be sent.
    pub fn go_on(&self, number: usize) -> io::Result<()> {
        match &mut self.at(number).process {
            Some(process) if process.stands_still() => process.go_on()?,
            _ => return Ok(()),
        }
        self.tell(history::Fault::Cont, Some(number), None, None);
        Ok(())
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// It does not end in time, or says that it failed.
    pub fn terminate(&self, number: usize) -> Result<(), Failure> {
        self.tell(history::Fault::Terminate, Some(number), None, None);
        let mut replica = self.at(number);
        let Some(mut process) = replica.process.take() else { return Ok(()) };
        match process.terminate(ENDS_WITHIN)? {
            Some(status) if status.success() => Ok(()),
            // One that has not begun does not listen to signals yet.
            Some(status) if status.signal().is_some() && !replica.has_begun(&self.folder, process.id()) => {
                Ok(())
            }
            Some(status) => replica.may_end(status),
            None => {
                let log = replica.spec.log.display();
                Err(format!("{} did not end within {ENDS_WITHIN:?} after SIGTERM; see {log}", replica.name)
                    .into())
            }
        }
    }

    /// Starts those again that have ended by themselves, as whatever runs a bot does. How many there were.
    ///
    /// # Errors
    /// As [`start`](Self::start), or one had no reason to end.
    pub fn revive(&self) -> Result<usize, Failure> {
        let mut revived = 0;
        for number in 0..self.replicas.len() {
            let mut replica = self.at(number);
            if let Some(process) = &mut replica.process
                && let Some(status) = process.ended()?
            {
                replica.process = None;
                replica.may_end(status)?;
                drop(replica);
                self.start(number)?;
                revived += 1;
            }
        }
        Ok(revived)
    }

    /// Whether everything that users said was taken over and answered, but for what may be lost.
    fn is_settled(&self) -> bool {
        let late = u64::try_from((self.options.lease + check::Limits::default().scheduling).as_nanos());
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = losses
            .iter()
            .map(|(from, to)| (*from, to.map_or(u64::MAX, |to| to.saturating_add(late.unwrap_or(u64::MAX)))));
        self.provider.owed(&lost.collect::<Vec<_>>()) == 0
    }

    /// From here on nothing hinders the replicas: whoever waits for a turn gets it.
    fn quiet(&self) {
        self.history.record(Event::Quiet);
    }

    /// Lets the replicas end, visits every chat once more, and writes down what is left on the servers.
    fn finish(&self) -> Result<(), Failure> {
        for number in 0..self.replicas.len() {
            if self.at(number).process.is_some() {
                self.terminate(number)?;
            }
        }
        self.sweep()?;
        let mut left = Vec::new();
        // What is given back may be on its way.
        real::within(Duration::from_secs(2), || {
            let Ok(tickets) = self.servers.tickets() else { return false };
            left = tickets;
            left.is_empty()
        });
        for (key, session) in &left {
            eprintln!("a ticket of session {session} is left in the queue of {key}");
        }
        self.history.record(Event::Queues { left: left.len() as u64 });
        self.history.record(Event::End);
        Ok(())
    }

    /// Visits what still has tickets, and every chat: whoever died with a ticket is found and holds nobody up.
    fn sweep(&self) -> Result<(), Failure> {
        let mut keys: BTreeSet<_> = self.servers.tickets()?.into_iter().map(|(key, _)| key).collect();
        if self.options.mode == Mode::Bare {
            keys.extend((0..self.options.chats).map(|chat| format!("chat{chat}")));
        }
        let mut spec = self.replica("sweep", 0, Mode::Sweep).spec;
        spec.args.extend(keys.into_iter().map(|key| format!("--visit={key}")));
        let mut process = Process::start(&spec)?;
        let mut status = None;
        let ended = real::within(ENDS_WITHIN * 2, || {
            status = process.ended().ok().flatten();
            status.is_some()
        });
        match status {
            Some(status) if status.success() => Ok(()),
            _ if ended => Err(format!("the last visits failed; see {}", spec.log.display()).into()),
            _ => Err("a queue is blocked: the last visits did not end within a minute".into()),
        }
    }
}
