//! The memory of conversations that wait for their users.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use botmesh::core::id::ChatId;
use botmesh::core::provider::InboundSink;
use botmesh::core::store::Store as _;
use botmesh::{Answer, Bot, BotBuilder, Conv, Ctx, Durability, Flow, TurnsConfig, flow};
use botmesh_sqlite_store::SqliteStore;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::bot::{NoChannel, RuntimeKind, spawn};
use crate::host::{memory, now, sleep};
use crate::message::{ANSWERED, inbound};

/// Chats that write at the same time.
const LANES: u32 = 256;

/// What the process keeps of idle chats has an upper limit. This many write before the memory is looked at, so that it is
/// reached, and caches are full.
const BEFORE: u32 = 20_000;

/// How often the memory is looked at.
const LOOKS: u32 = 10;

/// How long the memory rests before it is looked at: the sweeper has come by then.
const REST: Duration = Duration::from_millis(2500);

/// The aims, in bytes of each that waits: below what can be told from noise, and 400 MB for 100,000.
const AIM_PARKED: f64 = 10.0;
const AIM_LIVE: f64 = 4_000.0;

/// How a conversation waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Waiting {
    /// As a row of a persistent flow in SQLite
    Parked,
    /// With its code in memory, and no journals
    Live,
    /// With its code in memory, and the journals in SQLite
    LiveJournaled,
}

impl Waiting {
    fn name(self) -> &'static str {
        match self {
            Self::Parked => "persistent flow, in SQLite",
            Self::Live => "live conversation",
            Self::LiveJournaled => "live, journals in SQLite",
        }
    }

    fn aim(self) -> f64 {
        match self {
            Self::Parked => AIM_PARKED,
            Self::Live | Self::LiveJournaled => AIM_LIVE,
        }
    }
}

pub(crate) fn print_heading() {
    println!(
        "\nMEMORY of conversations that wait for an answer to a question: growth of what belongs to the process alone, after\n\
         {BEFORE} chats that came before (as rows, or with an answer that needs no conversation) filled the caches and what\n\
         is remembered of idle chats, which both have a limit. Each kind in a process of its own. A live conversation waits\n\
         at its second question and holds the answer to its first.\n"
    );
    println!(
        "{:<27} {:>9} {:>9} {:>8} {:>9} {:>10}",
        "waiting as", "how many", "begun / s", "MB", "bytes", "per GB"
    );
}

pub(crate) fn run(waiting: Waiting, count: u32) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    RuntimeKind::Current.build().block_on(measure(waiting, count, &folder.path().join("bot.db")));
}

async fn measure(waiting: Waiting, count: u32, file: &Path) {
    let store = SqliteStore::open(file).await.unwrap();
    let running = Running::start(waiting, count, &store).await;
    running.say(0..BEFORE, 1).await;
    sleep(REST).await;
    let before = memory();
    let begun = now();
    let messages = if waiting == Waiting::Parked { 1 } else { 2 };
    let mut curve = Vec::new();
    for look in 0..LOOKS {
        let at = |look: u32| BEFORE + (u64::from(count) * u64::from(look) / u64::from(LOOKS)) as u32;
        running.say(at(look)..at(look + 1), messages).await;
        curve.push(memory() - before);
    }
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    sleep(REST).await;
    print(waiting, count, rate, memory() - before, &curve);
    running.stop().await;
    store.close().await.unwrap();
}

fn print(waiting: Waiting, count: u32, rate: f64, mib: f64, curve: &[f64]) {
    let bytes = mib * 1_048_576.0;
    let each = bytes / f64::from(count);
    let per_gb = if each <= AIM_PARKED { "no limit".to_owned() } else { format!("{:.0}", 1e9 / each) };
    let verdict = if each <= waiting.aim() { "reached" } else { "MISSED" };
    println!("{:<27} {count:>9} {rate:>9.0} {:>8.1} {each:>9.1} {per_gb:>10}", waiting.name(), bytes / 1e6);
    let aim = waiting.aim() * f64::from(count) / 1e6;
    println!("  aim: {aim:.0} MB, {verdict}; MB while they grow in number (|: the aim):");
    for (look, mib) in curve.iter().enumerate() {
        let (many, mb) = (u64::from(count) * (look as u64 + 1) / u64::from(LOOKS), mib * 1.048_576);
        let width = (mb / aim * 40.0).round().clamp(0.0, 70.0) as usize;
        let mut bar: Vec<char> = format!("{:<41}", "#".repeat(width)).chars().collect();
        bar[40] = '|';
        println!("  {many:>9} {} {mb:.1}", bar.into_iter().collect::<String>());
    }
}

/// A bot that tells when it handled a message.
struct Running {
    bot: Bot,
    task: JoinHandle<botmesh::Result>,
    sink: Arc<dyn InboundSink>,
    handled: Arc<Vec<Notify>>,
}

impl Running {
    async fn start(waiting: Waiting, count: u32, store: &SqliteStore) -> Self {
        let (channel, connected) = NoChannel::new();
        let handled: Arc<Vec<_>> = Arc::new((0..LANES).map(|_| Notify::new()).collect());
        let tells = Arc::clone(&handled);
        let limits = TurnsConfig { max_live_conversations: count as usize, ..TurnsConfig::default() };
        let builder = Bot::builder().provider(channel).turns(limits).store(store.clone());
        let builder = builder.after_message(move |c: Ctx| {
            tells[(number(c.chat()) % LANES) as usize].notify_one();
            async {}
        });
        let builder = match waiting {
            Waiting::Parked | Waiting::Live => builder,
            Waiting::LiveJournaled => builder.durability(Durability::new(store.durability())),
        };
        let bot = routes(waiting, builder).build().unwrap();
        let run = bot.clone();
        let task = spawn(async move { run.run().await });
        Self { bot, task, sink: connected.await.unwrap(), handled }
    }

    /// Each of these chats writes so often.
    async fn say(&self, chats: Range<u32>, messages: u64) {
        let lane = |lane: u32| {
            let (sink, handled, chats) = (Arc::clone(&self.sink), Arc::clone(&self.handled), chats.clone());
            spawn(async move {
                for chat in chats.filter(|chat| chat % LANES == lane) {
                    for number in 0..messages {
                        let admitted = sink.admit(inbound(chat, number)).await.unwrap();
                        assert!(!admitted.duplicate, "each message is new");
                        handled[lane as usize].notified().await;
                    }
                }
            })
        };
        let lanes: Vec<_> = (0..LANES).map(lane).collect();
        for lane in lanes {
            lane.await.unwrap();
        }
    }

    async fn stop(self) {
        self.bot.stop();
        self.task.await.unwrap().unwrap();
    }
}

/// The number in a chat's id.
fn number(chat: &ChatId) -> u32 {
    chat.as_str().strip_prefix("chat-").unwrap().parse().unwrap()
}

fn routes(waiting: Waiting, builder: BotBuilder) -> BotBuilder {
    match waiting {
        Waiting::Parked => {
            let parked: Flow<()> = flow("booking").ask("day", ANSWERED, |_, _| Ok(())).persistent();
            builder.otherwise(async |c: Ctx| c.enter("booking")).flow(parked)
        }
        Waiting::Live | Waiting::LiveJournaled => {
            let answer = async |c: Ctx| {
                if number(c.chat()) >= BEFORE {
                    c.enter("booking");
                    return Ok(());
                }
                c.reply(ANSWERED).await.map(|_| ())
            };
            builder.otherwise(answer).conversation("booking", booking)
        }
    }
}

async fn booking(c: Conv) -> botmesh::Result {
    let day: Answer = c.ask(ANSWERED).await?;
    c.say(format!("Noted: {}", day.text())).await?;
    let accepted = c.ask("Is that all right?").check(|answer| match answer.text() {
        "" => Err("Yes or no?".into()),
        text => Ok(text == "yes"),
    });
    let accepted = accepted.await?;
    c.say(format!("{}: {accepted}", day.text())).await?;
    Ok(())
}
