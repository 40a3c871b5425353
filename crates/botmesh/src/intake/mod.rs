//! Where events of the channel are taken over: journaled before any handler sees them, once however often they arrive.

mod media;
mod recent;
mod unreadable;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::core::error::{Cas, Effect, StoreError, StoreErrorKind};
use crate::core::id::{ChatId, RecordId};
use crate::core::inbound::{Inbound, InboundBody};
use crate::core::journal::{Change, InboxRecord, InboxState, Stored};
use crate::core::kv::Version;
use crate::core::provider::{AdmitError, Admitted};
use crate::scheduler::is_task;
use crate::turns::{Placed, Slot, Turns, Work};
use crate::world::{OpenJournal, World};
use recent::Recent;

/// Bounds of ids, so that no journal key is too long.
const MAX_ID: usize = 512;
const MAX_RECORD_ID: usize = 1536;

/// Three ids of this length make no record's id that is too long, whatever is escaped in them.
const SHORT_ID: usize = MAX_RECORD_ID / 3 / 4;

/// How long the coordinator may take to give a message its place. Then the channel is to deliver it again.
const PLACED_WITHIN: Duration = Duration::from_secs(5);

const JOURNALING: &str = "journaling an inbound event";

pub(crate) struct Intake {
    world: Arc<World>,
    turns: Arc<Turns>,
    backlog: Arc<Semaphore>,
    /// Cancelled when everything unfinished is queued again: what is new comes after it.
    recovered: CancellationToken,
    /// Without an inbox, redeliveries are recognised as long as they are remembered.
    recent: Recent,
}

impl Intake {
    pub(crate) fn new(world: Arc<World>, turns: Arc<Turns>, backlog: Arc<Semaphore>) -> Self {
        let (recovered, recent) = Default::default();
        Self { world, turns, backlog, recovered, recent }
    }

    /// Lets new events in.
    pub(crate) fn open_for_new(&self) {
        self.recovered.cancel();
    }

    /// Returns when everything unfinished is queued again.
    pub(crate) async fn recovered(&self) {
        self.recovered.cancelled().await;
    }

    /// A share of the backlog; waits while there is none, unless the bot stops.
    async fn room(&self) -> Result<OwnedSemaphorePermit, AdmitError> {
        if let Ok(permit) = Arc::clone(&self.backlog).try_acquire_owned() {
            return Ok(permit);
        }
        Box::pin(async {
            tokio::select! {
                biased;
                () = self.world.stopping.cancelled() => Err(AdmitError::Stopping),
                permit = Arc::clone(&self.backlog).acquire_owned() => permit.map_err(|_| AdmitError::Stopping),
            }
        })
        .await
    }

    /// Waits until new events are let in.
    async fn opened(&self) -> Result<(), AdmitError> {
        if !self.recovered.is_cancelled() {
            let opened = Box::pin(self.world.stopping.run_until_cancelled(self.recovered()));
            opened.await.ok_or(AdmitError::Stopping)?;
        }
        if self.world.stopping.is_cancelled() { Err(AdmitError::Stopping) } else { Ok(()) }
    }

    /// Takes a new event over, and its place in the order of its chat; see
    /// [`InboundSink::admit`](crate::core::provider::InboundSink::admit).
    pub(crate) async fn admit(&self, inbound: Arc<Inbound>) -> Result<Admitted, AdmitError> {
        let (admitted, placed) = self.take_over(inbound).await?;
        if let Some(placed) = placed {
            Box::pin(self.placed(placed)).await?;
        }
        Ok(admitted)
    }

    async fn placed(&self, placed: Placed) -> Result<(), AdmitError> {
        let placed = tokio::select! {
            biased;
            placed = placed => placed.is_ok(),
            () = self.world.seams.clock.sleep(PLACED_WITHIN) => false,
        };
        match &self.world.journal {
            Some(_) if !placed && self.world.stopping.is_cancelled() => Err(AdmitError::Stopping),
            Some(open) if !placed && !open.config.fail_open => Err(AdmitError::NoPlace),
            _ => Ok(()),
        }
    }

    /// Takes a new event over. Its place in the order of its chat may come later.
    pub(crate) async fn take_over(
        &self,
        inbound: Arc<Inbound>,
    ) -> Result<(Admitted, Option<Placed>), AdmitError> {
        check(&inbound)?;
        self.opened().await?;
        let permit = self.room().await?;
        let (inbound, lanes) = self.world.identify(inbound, &|key| self.turns.is_serving(key)).await?;
        let slot = self.turns.reserve(inbound.conversation());
        drop(lanes);
        match &self.world.journal {
            None => Ok(self.admit_to_memory(inbound, slot, permit)),
            Some(open) => self.admit_to_inbox(open, inbound, slot, permit).await,
        }
    }

    /// Takes an unfinished record up again; it must be queued and owned by this process. Waits while there is no room. If
    /// the bot stops meanwhile, the record is left to the next start.
    pub(crate) async fn readmit(&self, stored: Stored<InboxRecord>) {
        let Ok(permit) = self.room().await else { return };
        let slot = self.turns.reserve(stored.record.inbound.conversation());
        // The occurrence of a task comes this way also when it runs for the first time.
        if stored.record.attempts > 0 || !is_task(&stored.record.inbound.chat) {
            self.world.metrics.inbound_replayed.increment();
        }
        let (inbound, received) = (Arc::clone(&stored.record.inbound), stored.record.received);
        let suspect = |open: &OpenJournal| stored.record.is_suspect(open.config.inbox.max_attempts);
        let suspect = self.world.journal.as_ref().is_some_and(suspect);
        // Other processes may let it wait, and it is not what ends this one meanwhile.
        let under_turn = self.world.coordinated && stored.record.crashes > 0;
        let work = Work::new(inbound, received, Some(stored));
        let work = Work { replay: true, under_turn, _permit: Some(permit), ..work };
        // What begins under its turn waits for the others then, and not for whoever has that.
        if suspect && !under_turn { self.fill_alone(slot, work) } else { drop(slot.fill(work)) }
    }

    /// Lets a message begin after the other ones that may be what ends the process.
    fn fill_alone(&self, slot: Slot, work: Work) {
        slot.stand_back();
        let (world, turns) = (Arc::clone(&self.world), Arc::clone(&self.turns));
        self.world.spawn_tracked("suspect", async move {
            if let Some(alone) = world.stopping.run_until_cancelled(turns.alone()).await {
                drop(slot.fill(Work { alone, ..work }));
            }
        });
    }

    fn admit_to_memory(
        &self,
        inbound: Arc<Inbound>,
        slot: Slot,
        permit: OwnedSemaphorePermit,
    ) -> (Admitted, Option<Placed>) {
        let record = inbound.record_id();
        let duplicate = !self.recent.insert(&record);
        if duplicate {
            self.world.metrics.inbound_duplicates.increment();
            return (Admitted { record, duplicate }, None);
        }
        let work = Work::new(inbound, self.world.now(), None);
        let placed = slot.fill(Work { _permit: Some(permit), ..work });
        (Admitted { record, duplicate }, placed)
    }

    /// An admission to the inbox, and the insertion that it waits for.
    fn admission(
        &self,
        open: &OpenJournal,
        inbound: Arc<Inbound>,
        slot: Slot,
        permit: OwnedSemaphorePermit,
    ) -> (Admission<'_>, RecordId, Change) {
        let now = self.world.now();
        let (journaled, media) = match open.config.inbox.media_refs {
            true => media::to_journal(&*self.world.provider, &inbound),
            false => (Arc::clone(&inbound), None),
        };
        let new = if slot.starts_at_once() { InboxRecord::working } else { InboxRecord::queued };
        let mut record = new(journaled, open.journal.next_order(now), open.journal.owner(), now);
        record.media = media;
        let id = record.id.clone();
        let insert = Change::insert(&record);
        let lapses = open.journal.lease().lapses();
        let parts = Parts { record, inbound, slot, permit, lapses, journaled_in: Duration::ZERO };
        (Admission { world: &self.world, parts: Some(Box::new(parts)) }, id, insert)
    }

    async fn admit_to_inbox(
        &self,
        open: &OpenJournal,
        inbound: Arc<Inbound>,
        slot: Slot,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Admitted, Option<Placed>), AdmitError> {
        let (admission, id, insert) = self.admission(open, inbound, slot, permit);
        let since = self.world.monotonic();
        match open.journal.commit_one(insert).await {
            Ok(Cas::Applied(version)) => {
                self.world.events.over(JOURNALING);
                self.world.metrics.inbound_journaled.increment();
                let admitted = Admitted { record: id, duplicate: false };
                if !self.world.stopping.is_cancelled() {
                    return Ok((
                        admitted,
                        admission.journaled(version, self.world.monotonic().saturating_sub(since)),
                    ));
                }
                if let Some(stored) = admission.leave(version) {
                    Box::pin(self.turns.leave_to_next_start(&stored)).await;
                }
                // Other replicas would not wait for it.
                if self.world.coordinated { Err(AdmitError::Stopping) } else { Ok((admitted, None)) }
            }
            Ok(Cas::Lost) => {
                self.world.metrics.inbound_duplicates.increment();
                let placed = Box::pin(self.admit_again(open, admission)).await?;
                Ok((Admitted { record: id, duplicate: true }, placed))
            }
            Err(error) => {
                self.world.trouble(JOURNALING, &error);
                if error.effect() == Effect::Unknown {
                    // It may be in the inbox: the admission finds out, and handles it if it is.
                    drop(admission);
                } else if open.config.fail_open {
                    let placed = admission.dispatch_unjournaled();
                    return Ok((Admitted { record: id, duplicate: false }, placed));
                } else {
                    admission.cancel();
                }
                match error.kind() {
                    StoreErrorKind::TooLarge => Err(AdmitError::Invalid(error.to_string())),
                    _ => Err(error.into()),
                }
            }
        }
    }
}

impl Intake {
    /// What was taken over before, maybe by a replica that is no more, goes before what the channel delivers next.
    async fn admit_again(
        &self,
        open: &OpenJournal,
        admission: Admission<'_>,
    ) -> Result<Option<Placed>, AdmitError> {
        let found = match (self.world.coordinated, admission.id()) {
            (true, Some(id)) => open.journal.inbox().get(id).await,
            _ => Ok(None),
        };
        match found {
            Ok(Some(stored)) if stored.record.is_in_process() => Ok(admission.again(stored)),
            other => {
                admission.cancel();
                other?;
                Ok(None)
            }
        }
    }
}

/// Whether an event may come from this chat.
pub(crate) fn is_possible(chat: &ChatId) -> bool {
    (1..=MAX_ID).contains(&chat.as_str().len()) && !is_task(chat)
}

fn check(inbound: &Inbound) -> Result<(), AdmitError> {
    let sender = inbound.sender.as_ref().map(|sender| sender.id.as_str());
    let ids =
        [("event", Some(inbound.event.as_str())), ("chat", Some(inbound.chat.as_str())), ("sender", sender)];
    for (name, id) in ids.into_iter().filter_map(|(name, id)| Some((name, id?))) {
        if id.is_empty() || id.len() > MAX_ID {
            let problem = format!("its {name} id has {} bytes, not 1 to {MAX_ID}", id.len());
            return Err(AdmitError::Invalid(problem));
        }
    }
    if is_task(&inbound.chat) {
        return Err(AdmitError::Invalid(format!("the chat id `{}` is reserved for tasks", inbound.chat)));
    }
    // Most ids are so short that nobody needs to know how long they are together.
    let short = inbound.origin.is_none() && ids.iter().all(|(_, id)| id.is_none_or(|id| id.len() < SHORT_ID));
    if !short && inbound.record_id().as_str().len() > MAX_RECORD_ID {
        return Err(AdmitError::Invalid(format!("its ids have together more than {MAX_RECORD_ID} bytes")));
    }
    if let InboundBody::Location { latitude, longitude, .. } = &inbound.body
        && !(latitude.is_finite() && longitude.is_finite())
    {
        // JSON has no such number: the record could not be read back.
        return Err(AdmitError::Invalid(format!("there is no place at {latitude}, {longitude}")));
    }
    Ok(())
}

/// A record that is being journaled, with its place in the queue. If it is dropped before the outcome is known, the
/// record may be in the inbox and owned by this process, so somebody must look.
struct Admission<'a> {
    world: &'a Arc<World>,
    parts: Option<Box<Parts>>,
}

struct Parts {
    record: InboxRecord,
    /// The event as it arrived; the record may hold it without its media's live token.
    inbound: Arc<Inbound>,
    slot: Slot,
    permit: OwnedSemaphorePermit,
    /// How often the lease had lapsed before.
    lapses: u64,
    /// How long it took to journal it.
    journaled_in: Duration,
}

impl Admission<'_> {
    fn id(&self) -> Option<&RecordId> {
        self.parts.as_ref().map(|parts| &parts.record.id)
    }

    fn journaled(mut self, version: Version, journaled_in: Duration) -> Option<Placed> {
        let mut parts = self.parts.take()?;
        parts.journaled_in = journaled_in;
        parts.dispatch(Some(version))
    }

    /// The event was taken over before, and this became of it so far.
    fn again(mut self, stored: Stored<InboxRecord>) -> Option<Placed> {
        let Parts { inbound, slot, permit, .. } = *self.parts.take()?;
        let work = Work::new(inbound, stored.record.received, Some(stored));
        slot.fill(Work { replay: true, under_turn: true, _permit: Some(permit), ..work })
    }

    /// The record, which is not to begin any more.
    fn leave(mut self, version: Version) -> Option<Stored<InboxRecord>> {
        Some(Stored { record: self.parts.take()?.record, version })
    }

    fn cancel(mut self) {
        self.parts = None;
    }

    fn dispatch_unjournaled(mut self) -> Option<Placed> {
        self.parts.take()?.dispatch(None)
    }
}

impl Parts {
    /// `version` is that of the record in the inbox, if it is there.
    fn dispatch(self, version: Option<Version>) -> Option<Placed> {
        let Self { record, inbound, slot, permit, lapses, journaled_in } = self;
        let received = record.received;
        let record = version.map(|version| Stored { record, version });
        let work = Work::new(inbound, received, record);
        slot.fill(Work { lapses, journaled_in, _permit: Some(permit), ..work })
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        let world = Arc::clone(self.world);
        self.world.spawn_tracked("finish-admission", async move {
            let Some(open) = &world.journal else { return };
            while !world.stopping.is_cancelled() {
                match find_out(open, &parts.record).await {
                    Ok(Some(Stored { record, version })) => {
                        world.metrics.inbound_journaled.increment();
                        parts.record = record;
                        return drop(parts.dispatch(Some(version)));
                    }
                    Err(error) if error.retry() => world.seams.clock.sleep(open.config.poll).await,
                    Ok(None) | Err(_) => return,
                }
            }
        });
    }
}

/// The record of an admission that does not know whether its write took effect; `None` if it is another's. To look is not
/// enough, because the write may still be under way: this one writes again, and whichever comes second loses.
async fn find_out(
    open: &OpenJournal,
    record: &InboxRecord,
) -> Result<Option<Stored<InboxRecord>>, StoreError> {
    if let Cas::Applied(version) = open.journal.commit_one(Change::insert(record)).await? {
        return Ok(Some(Stored { record: record.clone(), version }));
    }
    let stored = open.journal.inbox().get(&record.id).await?;
    Ok(stored.filter(|stored| is_same(&stored.record, record)))
}

/// Whether the stored record is the one that this admission wrote, still untouched.
fn is_same(stored: &InboxRecord, written: &InboxRecord) -> bool {
    let untouched = matches!(stored.state, InboxState::Queued | InboxState::Working);
    untouched && stored.owner == written.owner && stored.order == written.order
}
