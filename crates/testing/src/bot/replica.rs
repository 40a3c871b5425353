//! One replica of a bot under test.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use botmesh::{Bot, BotBuilder, BotEvent};
use botmesh_core::spawn::Spawner;
use tokio::sync::oneshot;

use super::stage::{Build, PATIENCE, Stage};
use super::{CrashPoint, Step};
use crate::{CrashableStore, Fault, LossyKv, MockProvider};

/// A replica of a [`TestBot`](super::TestBot): a process that stops, crashes, stands still and starts again by itself, while
/// the others run. Clones are the same replica.
#[derive(Clone)]
pub struct Replica {
    stage: Arc<Stage>,
    number: usize,
}

impl Replica {
    pub(super) fn new(stage: Arc<Stage>, number: usize) -> Self {
        Self { stage, number }
    }

    /// Which it is, from 1.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Dies now, wherever it stands. The other replicas know it at once, as if its lease had run out; what it owned in the
    /// journals they take over when its journals' lease has run out in virtual time.
    pub fn crash(&self) {
        let life = self.stage.life(self.number);
        self.stage.note(format!("  ! {} is killed", self.name()));
        life.process.now();
        life.bury();
    }

    /// Dies right before it next comes to `point`: a [`WritePoint`](crate::WritePoint), or [`CrashPoint::Send`]. Nothing
    /// that it does afterwards reaches anybody, and the others know it at once; see [`crash`](Self::crash).
    pub fn crash_before(&self, point: impl Into<CrashPoint>) {
        self.arm(point.into(), Fault::CrashBefore);
    }

    /// Dies right after it next came through `point`, before it hears of it.
    pub fn crash_after(&self, point: impl Into<CrashPoint>) {
        self.arm(point.into(), Fault::CrashAfter);
    }

    fn arm(&self, point: CrashPoint, fault: Fault) {
        let life = self.stage.life(self.number);
        match (point, fault) {
            (CrashPoint::Write(point), fault) => life.journal.fault_at(point, 1, fault),
            (CrashPoint::Send, Fault::CrashBefore) => life.provider.crash_before_send(1),
            (CrashPoint::Send, _) => life.provider.crash_after_send(1),
        }
        let when = if fault == Fault::CrashBefore { "before" } else { "after" };
        self.stage.arm(self.number, format!("{when} {point}"));
    }

    /// Stops in good order: what is in flight is finished. If it freezes meanwhile, it stops when it thaws.
    ///
    /// # Panics
    /// The step panics if it stands still, does not stop in a minute of virtual time, or ends with an error.
    pub fn stop(&self) -> Step<'static> {
        let replica = self.clone();
        Step::new(async move { replica.end().await })
    }

    /// Starts again: after a crash, and if it stands still, as a supervisor would; else it is stopped first. What users said
    /// meanwhile and no other replica took over is delivered now.
    ///
    /// # Panics
    /// The step panics if it does not stop, or if it was to crash and has not.
    pub fn restart(&self) -> Step<'static> {
        self.next_life(None, None)
    }

    /// As [`restart`](Self::restart), under another instance id, as on another host: what the old instance owned is taken
    /// over when its lease ran out.
    pub fn restart_as(&self, instance: impl Into<String>) -> Step<'static> {
        self.next_life(Some(instance.into()), None)
    }

    /// As [`restart`](Self::restart), with another build from now on: a new version of the bot.
    ///
    /// # Panics
    /// As `restart`, and if the bot cannot be built.
    pub fn deploy(&self, build: impl Fn(BotBuilder) -> BotBuilder + Send + Sync + 'static) -> Step<'static> {
        self.next_life(None, Some(Arc::new(build)))
    }

    fn next_life(&self, instance: Option<String>, build: Option<Build>) -> Step<'static> {
        let replica = self.clone();
        Step::new(async move {
            let (stage, number) = (&replica.stage, replica.number);
            let life = stage.life(number);
            if !life.is_over() {
                if let Some(crash) = stage.take_armed(number) {
                    let name = replica.name();
                    return Err(
                        stage.failure(&format!("{name} was to crash {crash}, but it never comes to it"))
                    );
                }
                if !life.is_frozen() {
                    replica.end().await?;
                }
                if life.is_frozen() {
                    replica.crash();
                }
            }
            drop(life);
            stage.start_again(number, instance, build).await
        })
    }

    async fn end(&self) -> Result<(), String> {
        let life = self.stage.life(self.number);
        if life.is_frozen() {
            return Err(self.stage.failure(&format!("{} stands still; `thaw` it", self.name())));
        }
        life.stopping.store(true, Ordering::Relaxed);
        life.bot.stop();
        let over = || (life.is_over() || life.is_frozen()).then_some(());
        let over = self.stage.wait_for(PATIENCE, over).await?;
        let name = self.name();
        match (over, life.ended.get()) {
            (None, _) => Err(self.stage.failure(&format!("{name} does not stop ({})", life.describe_work()))),
            (_, Some(Err(error))) => Err(self.stage.failure(&format!("{name} has ended: {error}"))),
            _ => Ok(()),
        }
    }

    /// Stands still from now on, as a process that is swapped out or suspended: it does nothing, and renews nothing. The
    /// others go on at once, as if its lease of the chats had run out; what it owned in the journals they take over when
    /// its journals' lease has run out in virtual time. What users say goes to another replica, or waits.
    pub fn freeze(&self) {
        if self.stage.life(self.number).freeze() {
            self.stage.note(format!("  ! {} stands still", self.name()));
        }
    }

    /// Stands still, as after [`freeze`](Self::freeze), when its tasks went on so many times more: amid whatever it does
    /// then, also during a step of the test. If it never comes so far, it runs on.
    pub fn freeze_after(&self, polls: u64) {
        self.stage.life(self.number).freezes_in.store(polls.max(1), Ordering::Relaxed);
    }

    /// Goes on where it stood still, and finds out what it lost meanwhile.
    pub fn thaw(&self) -> Step<'static> {
        let replica = self.clone();
        Step::new(async move {
            let life = replica.stage.life(replica.number);
            if life.frozen.swap(false, Ordering::Relaxed) {
                replica.stage.note(format!("  ! {} goes on", replica.name()));
            }
            replica.stage.settle().await
        })
    }

    /// Whether it runs: it has neither crashed nor ended, and does not stand still.
    pub fn is_running(&self) -> bool {
        let life = self.stage.life(self.number);
        !life.is_over() && !life.is_frozen()
    }

    /// Whether it has crashed.
    pub fn has_crashed(&self) -> bool {
        self.stage.life(self.number).process.happened()
    }

    /// Does something with this replica's bot; see [`TestBot::does`](super::TestBot::does).
    ///
    /// # Panics
    /// The step panics if it is not done in a minute of virtual time.
    pub fn does<T, F>(&self, work: impl FnOnce(Bot) -> F + Send + 'static) -> Step<'static, Option<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let replica = self.clone();
        Step::new(async move {
            let stage = &replica.stage;
            stage.settle().await?;
            let life = stage.life(replica.number);
            let (done, mut result) = oneshot::channel();
            let work = work(life.bot.clone());
            life.tasks.spawn("test", Box::pin(async move { drop(done.send(work.await)) }));
            let mut value = None;
            let done = stage.wait_for(PATIENCE, || {
                value = result.try_recv().ok();
                (value.is_some() || life.is_over()).then_some(())
            });
            match done.await? {
                Some(()) => Ok(value),
                None => Err(stage.failure(&format!("it is not done in {PATIENCE:?}"))),
            }
        })
    }

    /// The channel as this replica is connected to it: what is delivered through it reaches this replica alone.
    pub fn channel(&self) -> MockProvider {
        self.stage.channel(self.number)
    }

    /// The journals' backend as this life sees it, to let writes fail.
    pub fn backend(&self) -> LossyKv {
        self.stage.life(self.number).journal.clone()
    }

    /// The store as this life sees it, to let writes fail.
    pub fn store(&self) -> CrashableStore {
        self.stage.life(self.number).store.clone()
    }

    /// The bot of this life. To await what it does, use [`does`](Self::does).
    pub fn bot(&self) -> Bot {
        self.stage.life(self.number).bot.clone()
    }

    /// What all lives of this replica told so far.
    pub fn events(&self) -> Vec<BotEvent> {
        let told = self.stage.told().into_iter();
        told.filter(|(replica, _)| *replica == self.number).map(|(_, event)| event).collect()
    }

    fn name(&self) -> String {
        self.stage.name(self.number)
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica")
            .field("number", &self.number)
            .field("running", &self.is_running())
            .finish_non_exhaustive()
    }
}
