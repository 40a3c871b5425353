//! One simulated run: users, replicas, and everything that happens to them.

mod check;

use std::collections::BTreeMap;
use std::time::Duration;

use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh::core::provider::Resolve;
use botmesh::{Durability, Fallback, HandoverConfig, HandoverFlows, InboxConfig, OutboxConfig};
use botmesh_testing::{CrashPoint, MockProvider, Sent, TestBot, WritePoint};

use crate::shop::{Slowness, Tickets, shop};

const REPLICAS: usize = 3;
const USERS: [&str; 2] = ["ana", "ben"];
const ROUNDS: u32 = 30;

/// The journals' lease: what a replica that is gone left is taken over after it.
const LEASE: Duration = Duration::from_secs(20);

pub(crate) struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).expect("an index")]
    }

    fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What somebody said.
struct Said {
    /// Whether the user waited for what the bot said to the message before.
    patient: bool,
}

struct Run {
    bot: TestBot,
    dice: Dice,
    slowness: Slowness,
    tickets: Tickets,
    said: BTreeMap<String, Said>,
    counts: BTreeMap<&'static str, u32>,
    /// Replicas that are to crash at some point.
    armed: [bool; REPLICAS],
    /// Replicas that stood still since they started.
    frozen: [bool; REPLICAS],
}

/// Runs a seed to its end, and says what is wrong with it.
pub(crate) async fn run(seed: u64) -> Result<(), String> {
    let (slowness, tickets) = (Slowness::default(), Tickets::default());
    let handover = HandoverConfig::default().with_flows(HandoverFlows::Forward).with_fallback(
        Fallback::function(|_, c| async move {
            c.reply(format!("interrupted|{}", c.text())).await?;
            Ok(true)
        }),
    );
    let durability = Durability::default()
        .with_poll(Duration::from_secs(5))
        .with_inbox(InboxConfig { lease: LEASE, max_attempts: 50, ..InboxConfig::default() })
        .with_outbox(OutboxConfig { lease: LEASE, retries: 50, ..OutboxConfig::default() });
    let bot = TestBot::replicas(REPLICAS)
        .seed(seed)
        .durability(durability)
        .handover(handover)
        .channel(MockProvider::with_resolve(Resolve::Lookup))
        .start(shop(1, slowness.clone(), tickets.clone()));
    let dice = Dice(SeededEntropy::new(seed ^ 0x5157));
    let (said, counts) = Default::default();
    let mut run = Run {
        bot,
        dice,
        slowness,
        tickets,
        said,
        counts,
        armed: [false; REPLICAS],
        frozen: [false; REPLICAS],
    };
    for _ in 0..ROUNDS {
        run.step().await;
    }
    run.come_to_rest().await;
    run.check().await.map_err(|wrong| format!("seed {seed}: {wrong}\n{}", run.bot.transcript()))
}

impl Run {
    async fn step(&mut self) {
        match self.dice.below(100) {
            0..60 => self.speak().await,
            60..75 => self.pass_time().await,
            75..80 => self.crash(),
            80..85 => self.arm(),
            85..90 => self.freeze().await,
            90..96 => self.restart().await,
            _ => self.deploy().await,
        }
    }

    async fn speak(&mut self) {
        let user = self.dice.pick(&USERS);
        let count = self.counts.entry(user).or_default();
        *count += 1;
        let count = *count;
        let word = self.dice.pick(&["order", "quick", "desk", "talk", "a", "b", "c", "no"]);
        let text = format!("{word}-{user}{count}");
        let previous = format!("-{user}{}", count - 1);
        let heard = self.texts_to(user);
        let patient = count == 1 || heard.iter().any(|text| text.ends_with(&previous));
        if self.dice.chance(20) {
            self.slowness.set(&text, Duration::from_secs(1 + self.dice.below(100)));
        }
        self.said.insert(text.clone(), Said { patient });
        let through = usize::try_from(1 + self.dice.below(REPLICAS as u64)).expect("a replica");
        self.bot.user(user).through(through).says(text).await;
        if self.dice.chance(70) {
            self.bot.advance(Duration::from_millis(self.dice.below(3000))).await;
        }
    }

    async fn pass_time(&mut self) {
        let longest = self.dice.pick(&[2_000, 30_000, 90_000, 300_000]);
        self.bot.advance(Duration::from_millis(self.dice.below(longest))).await;
    }

    fn one(&self) -> usize {
        usize::try_from(1 + self.dice.below(REPLICAS as u64)).expect("a replica")
    }

    fn crash(&mut self) {
        let replica = self.bot.replica(self.one());
        if replica.is_running() {
            replica.crash();
        }
    }

    /// Lets a replica die at the next of its writes, or calls of the channel, of some kind.
    fn arm(&mut self) {
        let number = self.one();
        let replica = self.bot.replica(number);
        if !replica.is_running() || self.armed[number - 1] {
            return;
        }
        match self.dice.below(4) {
            0 => replica.store().crash_before_write(1 + self.dice.below(3)),
            1 => replica.store().crash_after_write(1 + self.dice.below(3)),
            2 => {
                self.armed[number - 1] = true;
                replica.crash_before(self.point());
            }
            _ => {
                self.armed[number - 1] = true;
                replica.crash_after(self.point());
            }
        }
    }

    fn point(&self) -> CrashPoint {
        match self.dice.chance(30) {
            true => CrashPoint::Send,
            false => CrashPoint::Write(self.dice.pick(WritePoint::ALL)),
        }
    }

    async fn freeze(&mut self) {
        let number = self.one();
        let replica = self.bot.replica(number);
        if replica.is_running() {
            self.frozen[number - 1] = true;
            replica.freeze();
        } else {
            replica.thaw().await;
        }
    }

    async fn restart(&mut self) {
        let number = self.one();
        self.make_sure_of(number);
        self.bot.replica(number).restart().await;
    }

    async fn deploy(&mut self) {
        let number = self.one();
        self.make_sure_of(number);
        let version = self.dice.pick(&[1, 2]);
        self.bot.replica(number).deploy(shop(version, self.slowness.clone(), self.tickets.clone())).await;
    }

    /// A replica that has not come to the point where it was to crash crashes now. So does one that stood still, because it
    /// may be about to end by itself.
    fn make_sure_of(&mut self, number: usize) {
        let replica = self.bot.replica(number);
        let doomed =
            std::mem::take(&mut self.armed[number - 1]) | std::mem::take(&mut self.frozen[number - 1]);
        if doomed && !replica.has_crashed() {
            replica.crash();
        }
    }

    /// Nothing goes wrong any more, and everything that is left is done.
    async fn come_to_rest(&mut self) {
        for number in 1..=REPLICAS {
            self.make_sure_of(number);
            self.bot.replica(number).restart().await;
        }
        self.bot.advance(Duration::from_secs(1200)).await;
    }

    fn delivered(&self) -> Vec<Sent> {
        self.bot.channel().delivered()
    }

    fn texts_to(&self, user: &str) -> Vec<String> {
        let sent = self.delivered().into_iter().filter(|sent| sent.chat.as_str() == user);
        sent.map(|sent| sent.text().to_owned()).collect()
    }
}
