//! The background: takes up what is due or orphaned, and re-enters at the two front doors, intake and egress.

mod busy;
mod purge;
mod sends;
mod unreadable;

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, Semaphore};

use crate::core::coordinator::Trouble;
use crate::core::error::{Cas, StoreError};
use crate::core::id::ConversationKey;
use crate::core::journal::{Change, InboxRecord, InboxState, Leased, Owner, Stored, Unreadable};
use crate::core::kv::Version;
use crate::egress::Egress;
use crate::intake::Intake;
use crate::scheduler::Taken;
use crate::turns::Turns;
use crate::world::{OpenJournal, World};
pub(crate) use busy::Busy;
use purge::Purging;
use unreadable::Told;

/// How often waits are checked without durability.
const POLL_WITHOUT_JOURNAL: Duration = Duration::from_secs(1);

/// Bounds of one page, of the chats sent to at a time, and of one purge.
const PAGE: usize = 200;
const MAX_SENDING: usize = 32;

/// How long one sweep waits for room to call the channel. What is left is for the next one.
const SENDS_FOR: Duration = Duration::from_secs(1);

const RECOVERING: &str = "taking up unfinished messages";
const COORDINATION: &str = "sharing turns";
const CLOCK: &str = "the clock of the turns";
const SWEEPING: &str = "sweeping";

/// It sweeps, and leaves what may take long to the background: a chat that is slow holds back no other.
#[derive(Clone)]
pub(crate) struct Sweeper {
    pub(crate) world: Arc<World>,
    pub(crate) intake: Arc<Intake>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) egress: Arc<Egress>,
    pub(crate) wake: Arc<Notify>,
    /// Held during a sweep.
    pub(crate) sweeping: Arc<Mutex<()>>,
    /// What sweeps have begun; more begins only during a sweep.
    pub(crate) busy: Arc<Busy>,
    /// Who may call the channel.
    pub(crate) sending: Arc<Semaphore>,
    /// When all that is unfinished was last looked at and nothing of a dead process was found, on the monotonic clock, and
    /// whose sessions had ended then.
    clean: Arc<std::sync::Mutex<Option<Clean>>>,
    /// When the chats with unfinished sends were last counted, on the monotonic clock, and how often this replica had won the
    /// channel then.
    noted: Arc<std::sync::Mutex<Option<(Duration, u64)>>>,
    purging: Arc<std::sync::Mutex<Purging>>,
    told: Arc<Told>,
}

/// And how often this replica had won the channel by then: before, nobody looked at the sends.
type Clean = (Duration, HashSet<(Owner, Leased)>, u64);

impl Sweeper {
    pub(crate) fn new(
        world: Arc<World>,
        intake: Arc<Intake>,
        turns: Arc<Turns>,
        egress: Arc<Egress>,
    ) -> Self {
        let wake = turns.dispatcher().scheduler().wake();
        let sending = Arc::new(Semaphore::new(MAX_SENDING));
        let (sweeping, busy, clean, noted) = Default::default();
        let (purging, told) = Default::default();
        Self { world, intake, turns, egress, wake, sweeping, busy, sending, clean, noted, purging, told }
    }

    /// Queues what is unfinished again, lets new events in, and sweeps until the bot stops.
    pub(crate) async fn run(self) {
        if let Some(open) = &self.world.journal {
            while let Err(error) = self.recover(open).await {
                self.world.trouble(RECOVERING, &error);
                if !self.rest().await {
                    return;
                }
            }
        }
        self.world.events.over(RECOVERING);
        self.intake.open_for_new();
        while self.rest().await {
            match self.sweep().await {
                Ok(()) => self.world.events.over(SWEEPING),
                Err(error) => self.world.trouble(SWEEPING, &error),
            }
        }
    }

    async fn recover(&self, open: &OpenJournal) -> Result<(), StoreError> {
        self.note_chats_with_sends(open).await?;
        self.adopt_orphans(open).await?;
        self.turns.dispatcher().scheduler().ensure(open).await
    }

    /// Waits for the next sweep; `false` if the bot stops.
    async fn rest(&self) -> bool {
        let poll = self.world.journal.as_ref().map_or(POLL_WITHOUT_JOURNAL, |open| open.config.poll);
        tokio::select! {
            biased;
            () = self.world.stopping.cancelled() => false,
            () = self.world.seams.clock.sleep(poll) => true,
            () = self.wake.notified() => true,
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let _sweeping = self.sweeping.lock().await;
        self.world.metrics.tell_gauges(self.world.now());
        for about in Trouble::ALL {
            let context = match about {
                Trouble::Clock => CLOCK,
                _ => COORDINATION,
            };
            match self.world.replicas.coordinator.trouble(about) {
                Some(error) => self.world.events.trouble(context, &*error),
                None => self.world.events.over(context),
            }
        }
        if let Some(open) = &self.world.journal {
            // What is claimed without a lease is anybody's.
            if self.world.check_lease(Leased::Messages).and(self.world.check_lease(Leased::Sends)).is_err() {
                return Ok(());
            }
            self.take_due(open).await?;
            self.egress.tell_broadcasts(open).await?;
            self.recover(open).await?;
            self.purge(open).await?;
        }
        // Without an outbox, what a replica that stands by says in a conversation reaches nobody.
        if self.world.journal.is_none() && !self.world.lead.may_call() {
            return Ok(());
        }
        self.do_all_due().await
    }

    /// Retries what is due.
    async fn take_due(&self, open: &OpenJournal) -> Result<(), StoreError> {
        let now = self.world.now();
        let mut after = None;
        let sends_until = self.world.monotonic() + SENDS_FOR;
        loop {
            let due = open.journal.due(now, after.as_ref(), PAGE).await?;
            self.tell_unreadable(&due.inbox.unreadable);
            self.tell_unreadable(&due.outbox.unreadable);
            self.adopt(open, due.inbox.records).await?;
            // A replica that stands by leaves them to the one that leads.
            if self.world.lead.may_call() {
                self.take_sends(open, due.outbox.records, sends_until).await?;
            }
            match due.inbox.next {
                Some(next) if !self.world.stopping.is_cancelled() => after = Some(next),
                _ => return Ok(()),
            }
        }
    }

    /// Does work in the background, and holds something meanwhile.
    fn start<F>(&self, about: String, held: impl Send + 'static, work: impl FnOnce(Self) -> F)
    where
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let (world, work) = (Arc::clone(&self.world), work(self.clone()));
        self.world.spawn_tracked("background", async move {
            let _held = held;
            match world.abort.run_until_cancelled(work).await {
                Some(Ok(())) => world.events.over(&about),
                Some(Err(error)) => world.trouble(&about, &error),
                None => {}
            }
        });
    }

    /// Takes over what dead processes left: in the order of arrival, what was being handled before what waited.
    ///
    /// To look at everything unfinished costs as much as there is of it. So it is done when a session ran out, until
    /// nothing is found; and once in a lease, for what a process wrote that had been given up before.
    async fn adopt_orphans(&self, open: &OpenJournal) -> Result<(), StoreError> {
        let sessions = open.journal.sessions().await?;
        if sessions.is_superseded(&open.journal.owner()) {
            self.world.note_superseded();
            return Ok(());
        }
        let now = self.world.seams.clock.monotonic();
        let (ended, lease) = (sessions.ended(), open.config.leases().shorter());
        let terms = self.world.lead.terms();
        let is_clean = |(at, known, of): &Clean| {
            now.saturating_sub(*at) < lease && ended.is_subset(known) && *of == terms
        };
        if self.clean.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(is_clean) {
            return Ok(());
        }
        let mut found = false;
        for state in [InboxState::Working, InboxState::Queued] {
            let mut after = None;
            loop {
                let page = open.journal.inbox().list(state, after.as_ref(), PAGE).await?;
                self.tell_unreadable(&page.unreadable);
                let mut orphans = page.records;
                orphans.retain(|stored| sessions.is_orphan(stored.record.owner.as_ref(), Leased::Messages));
                found |= !orphans.is_empty();
                self.adopt(open, orphans).await?;
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        let leads = self.world.lead.may_call();
        if leads {
            found |= self.settle_orphaned_sends(open, &sessions).await?;
        }
        if !found {
            if leads {
                open.journal.remove_expired(&sessions).await?;
            }
            *self.clean.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, ended, terms));
        }
        Ok(())
    }

    /// Makes records this process's own, by one commit, and queues them.
    async fn adopt(&self, open: &OpenJournal, records: Vec<Stored<InboxRecord>>) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        let (owner, now) = (open.journal.owner(), self.world.now());
        let (max_attempts, scheduler) = (open.config.inbox.max_attempts, self.turns.dispatcher().scheduler());
        let taken: Vec<(Version, Taken)> = records
            .into_iter()
            .filter_map(|Stored { record, version }| {
                Some((version, scheduler.take(&record, &owner, max_attempts, now)?))
            })
            .collect();
        let letters: Vec<Change> =
            taken.iter().filter_map(|(_, taken)| taken.letter.as_ref().map(Change::insert)).collect();
        if !letters.is_empty() {
            // What is there already was written by somebody who did not get further.
            open.journal.commit(letters).await?;
        }
        let changes = taken.iter().map(|(version, taken)| Change::update(*version, &taken.record)).collect();
        let outcomes = open.journal.commit(changes).await?;
        for ((_, taken), outcome) in taken.into_iter().zip(outcomes) {
            if let Cas::Applied(version) = outcome {
                self.took(taken, version).await;
            }
        }
        Ok(())
    }

    /// Goes on with a record that is this process's own now.
    async fn took(&self, taken: Taken, version: Version) {
        let Taken { record, letter, missed } = taken;
        if let Some((event, missed)) = missed {
            self.world.metrics.tasks_missed.add(missed.into());
            self.world.events.emit(event);
        }
        match record.state {
            InboxState::Queued => self.intake.readmit(Stored { record, version }).await,
            _ => {
                self.turns.dispatcher().scheduler().wake_if_due(&record);
                let over = letter.unwrap_or(record);
                if over.state == InboxState::Dead {
                    self.world.tell_dead_message(over);
                }
            }
        }
    }

    /// Does what is due in conversations without a message of their user.
    async fn do_all_due(&self) -> Result<(), StoreError> {
        let conversations = self.turns.dispatcher().conversations();
        for key in conversations.overdue(self.world.now(), PAGE).await? {
            // An answer that came in time may be among its messages; the first that did not ends the wait.
            if self.turns.is_serving(&key) {
                continue;
            }
            let about = format!("doing what is due in {key}");
            if let Some(begun) = self.busy.begin(about.clone()) {
                self.start(about, begun, |sweeper| async move { sweeper.do_due(&key).await });
            }
        }
        Ok(())
    }

    async fn do_due(&self, key: &ConversationKey) -> Result<(), StoreError> {
        let dispatcher = self.turns.dispatcher();
        let Ok(turn) = self.turns.take_turn(key).await else { return Ok(()) };
        // Only now is it certain that nobody answers at the same time, and whether somebody left an answer.
        if !turn.was_given_back() && self.turns.is_left(key).await? {
            turn.abandon();
            return Ok(());
        }
        if self.turns.is_serving(key) {
            turn.release();
            return Ok(());
        }
        let done = dispatcher.do_due(&turn, key, self.world.now()).await;
        turn.release();
        done
    }

    fn tell_unreadable(&self, unreadable: &[Unreadable]) {
        self.told.tell(unreadable, &self.world.events);
    }
}
