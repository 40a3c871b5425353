//! Rounds of load, and what they measured.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use botmesh::core::provider::InboundSink;

use crate::bare;
use crate::bot::{Backend, Running, RuntimeKind, cycle, spawn};
use crate::host::{Sleeps, anonymous_memory, now, sleep};
use crate::message::Template;
use crate::probe::Probe;

/// How long a round runs before it is measured.
pub(crate) const WARM_UP: Duration = Duration::from_millis(250);

/// Chats of which the idle memory is measured, those before them, and how many of them write at the same time.
pub(crate) const IDLE_CHATS: u32 = 100_000;
const CHATS_BEFORE: u32 = 10_000;
const IDLE_LANES: u32 = 256;

/// How long the memory rests before it is looked at: the sweeper has come by then.
const REST: Duration = Duration::from_millis(2500);

/// Messages of which the allocations are counted.
const COUNTED: u64 = 10_240;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) backend: Backend,
    pub(crate) runtime: RuntimeKind,
    pub(crate) chats: u32,
}

/// What a round came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Messages per second.
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    messages: f64,
    pub(crate) per_message: PerMessage,
}

/// What a message costs besides time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PerMessage {
    pub(crate) commits: f64,
    pub(crate) writes: f64,
    pub(crate) runtime_sleeps: f64,
    pub(crate) writer_sleeps: f64,
}

impl Measured {
    pub(crate) fn new(mut cycles: Vec<Duration>, elapsed: Duration) -> Self {
        assert!(!cycles.is_empty(), "no message was done in time; give more seconds");
        cycles.sort_unstable();
        let at = |share: f64| cycles[((cycles.len() - 1) as f64 * share) as usize];
        Self {
            rate: cycles.len() as f64 / elapsed.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
            messages: cycles.len() as f64,
            per_message: PerMessage::default(),
        }
    }

    pub(crate) fn with_sleeps(mut self, sleeps: Sleeps) -> Self {
        self.per_message.runtime_sleeps = sleeps.others as f64 / self.messages;
        self.per_message.writer_sleeps = sleeps.writer as f64 / self.messages;
        self
    }

    fn with_counts(mut self, commits: u64, writes: u64) -> Self {
        self.per_message.commits = commits as f64 / self.messages;
        self.per_message.writes = writes as f64 / self.messages;
        self
    }
}

/// The rounds of the programs that took turns.
pub(crate) struct Compared {
    pub(crate) backend: Backend,
    pub(crate) chats: u32,
    /// The bare program; empty where there is none to compare with.
    pub(crate) bare: Vec<Measured>,
    /// All chats in step; empty for one chat.
    pub(crate) in_step: Vec<Measured>,
    pub(crate) bots: Vec<(Cell, Vec<Measured>)>,
}

/// Where a round stands.
#[derive(Default)]
pub(crate) struct Phase(AtomicU8);

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

impl Phase {
    pub(crate) fn is_measuring(&self) -> bool {
        self.0.load(Ordering::Relaxed) == MEASURED
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OVER
    }

    /// Goes through the phases. Returns how long was measured, and what `look` saw in that time.
    pub(crate) async fn run<T>(&self, length: Duration, look: impl Fn() -> T) -> (Duration, (T, T)) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), WARM);
        sleep(WARM_UP).await;
        let before = look();
        let begun = now();
        self.0.store(MEASURED, Ordering::Relaxed);
        sleep(length).await;
        self.0.store(OVER, Ordering::Relaxed);
        (begun.elapsed(), (before, look()))
    }
}

/// How rounds are run.
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) round: Duration,
    pub(crate) folder: PathBuf,
}

impl Plan {
    /// Runs the bare program, where there is one, and the bot on each runtime in turns.
    pub(crate) fn compare(
        &self,
        backend: Backend,
        chats: u32,
        runtimes: &[RuntimeKind],
        template: &Arc<Template>,
    ) -> Compared {
        let bots = runtimes.iter().map(|&runtime| (Cell { backend, runtime, chats }, Vec::new())).collect();
        let mut compared = Compared { backend, chats, bare: Vec::new(), in_step: Vec::new(), bots };
        for _ in 0..self.rounds {
            if backend != Backend::Memory {
                let round = |file: &Path| bare::run(backend, file, template, chats, self.round);
                compared.bare.push(self.on_a_new_file(round));
                if chats > 1 {
                    let round = |file: &Path| bare::in_step(backend, file, template, chats, self.round);
                    compared.in_step.push(self.on_a_new_file(round));
                }
            }
            for (cell, rounds) in &mut compared.bots {
                rounds.push(self.on_a_new_file(|file| run(file, *cell, self.round)));
            }
        }
        compared
    }

    fn on_a_new_file<T>(&self, run: impl FnOnce(&Path) -> T) -> T {
        let folder = tempfile::tempdir_in(&self.folder).unwrap();
        run(&folder.path().join("bot.db"))
    }
}

/// One round of a bot.
fn run(file: &Path, cell: Cell, length: Duration) -> Measured {
    let runtime = cell.runtime.build();
    let file = file.to_owned();
    // As a task of the runtime: the thread that blocks on it is not one of its own.
    let round = async move {
        let running = Running::start(cell.backend, &file, cell.chats).await;
        let phase = Arc::new(Phase::default());
        let talk = |chat| spawn(talk(running.sink(), Arc::clone(&running.probe), Arc::clone(&phase), chat));
        let tasks: Vec<_> = (0..cell.chats).map(talk).collect();
        let (elapsed, (before, after)) =
            phase.run(length, || (running.probe.counts(), Sleeps::so_far())).await;
        let mut cycles = Vec::new();
        for task in tasks {
            cycles.extend(task.await.unwrap());
        }
        running.stop().await;
        let ((before, slept_before), (after, slept_after)) = (before, after);
        Measured::new(cycles, elapsed)
            .with_counts(after.0 - before.0, after.1 - before.1)
            .with_sleeps(slept_after.since(slept_before))
    };
    runtime.block_on(async { spawn(round).await }).unwrap()
}

async fn talk(sink: Arc<dyn InboundSink>, probe: Arc<Probe>, phase: Arc<Phase>, chat: u32) -> Vec<Duration> {
    let mut cycles = Vec::new();
    for number in 0.. {
        if phase.is_over() {
            break;
        }
        let begun = now();
        cycle(&*sink, &probe, chat, number).await;
        if phase.is_measuring() {
            cycles.push(begun.elapsed());
        }
    }
    cycles
}

/// Bytes of memory that each chat costs which has written once and is idle, with its journals on disk.
pub(crate) fn idle_chats(file: &Path) -> f64 {
    let runtime = RuntimeKind::Current.build();
    runtime.block_on(async {
        let running = Arc::new(Running::start(Backend::Sqlite, file, IDLE_LANES).await);
        write_once(&running, 0..CHATS_BEFORE).await;
        sleep(REST).await;
        let before = anonymous_memory();
        write_once(&running, CHATS_BEFORE..CHATS_BEFORE + IDLE_CHATS).await;
        sleep(REST).await;
        let after = anonymous_memory();
        Arc::into_inner(running).unwrap().stop().await;
        after.saturating_sub(before) as f64 / f64::from(IDLE_CHATS)
    })
}

async fn write_once(running: &Arc<Running>, chats: std::ops::Range<u32>) {
    let lane = |lane: u32| {
        let (running, chats) = (Arc::clone(running), chats.clone());
        spawn(async move {
            for chat in chats.filter(|chat| chat % IDLE_LANES == lane) {
                running.cycle(chat, 0).await;
            }
        })
    };
    let lanes: Vec<_> = (0..IDLE_LANES).map(lane).collect();
    for lane in lanes {
        lane.await.unwrap();
    }
}

/// Allocations and allocated bytes of one message, on the runtime's thread.
pub(crate) fn allocations(backend: Backend, chats: u32, folder: &Path) -> (f64, f64) {
    let folder = tempfile::tempdir_in(folder).unwrap();
    let runtime = RuntimeKind::Current.build();
    let file = folder.path().join("bot.db");
    let running = Arc::new(runtime.block_on(Running::start(backend, &file, chats)));
    let each = COUNTED / u64::from(chats);
    runtime.block_on(talk_each(&running, chats, 0..each));
    let counted = allocation_counter::measure(|| {
        runtime.block_on(talk_each(&running, chats, each..2 * each));
    });
    runtime.block_on(Arc::into_inner(running).unwrap().stop());
    let messages = (each * u64::from(chats)) as f64;
    (counted.count_total as f64 / messages, counted.bytes_total as f64 / messages)
}

async fn talk_each(running: &Arc<Running>, chats: u32, numbers: std::ops::Range<u64>) {
    let talk = |chat| {
        let (running, numbers) = (Arc::clone(running), numbers.clone());
        spawn(async move {
            for number in numbers {
                running.cycle(chat, number).await;
            }
        })
    };
    let chats: Vec<_> = (0..chats).map(talk).collect();
    for chat in chats {
        chat.await.unwrap();
    }
}
