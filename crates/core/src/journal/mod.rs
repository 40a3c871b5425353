//! The journals: an inbox of what arrived and an outbox of what is sent, over any [`DurableKv`].
//!
//! Records change only by the pure transitions of [`InboxRecord`] and [`OutboxRecord`]; each change is one
//! compare-and-set. Several changes can share one commit, which is what makes a message with one reply cost three
//! commits instead of six: the record is born owned, the send is born in flight, and "sent" and "done" go together.

mod ambiguity;
mod committer;
mod group;
mod inbox;
mod lease;
mod outbox;
mod point;
mod record;
mod revival;
mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

pub use ambiguity::{Ambiguity, OnAmbiguous};
pub use committer::Change;
pub use inbox::{InboxRecord, InboxState};
pub use lease::{Lease, Leased, Leases};
pub use outbox::{ErrorNote, Follows, OutboxRecord, OutboxState, Part, Send};
pub use point::WritePoint;
pub use record::{Owner, Page, Record, Refused, Stored, Unreadable};
pub use revival::Revival;
pub use session::{Beat, Sessions};

use crate::error::{Cas, StoreError};
use crate::id::{ChatId, InstanceId, RecordId, SendKey};
use crate::kv::{Caps, Cursor, DurableKv, Range, Version};
use crate::scope::Scope;
use crate::spawn::Seams;
use crate::time::Timestamp;
use committer::Committer;
use group::Grouped;
use session::Session;

/// The journals of a backend, before a bot has opened its own.
#[derive(Clone)]
pub struct KvDurability {
    kv: Arc<dyn DurableKv>,
}

impl KvDurability {
    /// The journals in `kv`.
    pub fn new(kv: Arc<dyn DurableKv>) -> Self {
        Self { kv }
    }

    /// What the backend claims.
    pub fn caps(&self) -> Caps {
        self.kv.caps()
    }

    /// The journals behind something that sees the calls of the backend.
    #[must_use]
    pub fn wrapped(self, wrap: impl FnOnce(Arc<dyn DurableKv>) -> Arc<dyn DurableKv>) -> Self {
        Self { kv: wrap(self.kv) }
    }

    /// Opens the journals of one bot as `instance`. An earlier process of the same instance loses everything it owned at
    /// once; other instances are not touched. `leases` is how long the process may be silent before others take over
    /// what it owns: one [`Duration`](std::time::Duration) for all, or [`Leases`].
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn open(
        &self,
        scope: &Scope,
        instance: InstanceId,
        leases: impl Into<Leases>,
        seams: Seams,
    ) -> Result<Journal, StoreError> {
        let scoped = self.kv.scoped(&scope.id());
        let ungrouped = Arc::clone(&scoped);
        let kv = if scoped.caps().groups_commits { scoped } else { Grouped::start(scoped, &seams) };
        let committer = Committer::new(kv, seams);
        let session = Session::open(&committer, instance, leases.into()).await?;
        let (heart, order) = (OnceCell::new(), AtomicI64::new(0));
        Ok(Journal { inner: Arc::new(Inner { committer, ungrouped, heart, session, order }) })
    }
}

impl From<Arc<dyn DurableKv>> for KvDurability {
    fn from(kv: Arc<dyn DurableKv>) -> Self {
        Self::new(kv)
    }
}

impl std::fmt::Debug for KvDurability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvDurability").field("caps", &self.caps()).finish()
    }
}

/// The open journals of one bot. Clones share them.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    committer: Committer,
    ungrouped: Arc<dyn DurableKv>,
    /// What the session is renewed with: nothing else waits before it.
    heart: OnceCell<Heart>,
    session: Session,
    order: AtomicI64,
}

struct Heart {
    committer: Committer,
    /// Whether its connection is its own.
    dedicated: bool,
}

/// A page of what is due; both parts have the same `next`.
#[derive(Clone, Debug)]
pub struct Due {
    /// Inbound records.
    pub inbox: Page<InboxRecord>,
    /// Sends.
    pub outbox: Page<OutboxRecord>,
}

/// What a purge of one page came to.
#[derive(Clone, Debug)]
pub struct Purged {
    /// How many records were removed.
    pub removed: usize,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<Cursor>,
}

/// The most records of one page.
const MAX_PAGE: usize = 1000;

/// The inbox: what arrived.
pub type Inbox<'a> = Records<'a, InboxRecord>;

/// The outbox: what is sent.
pub type Outbox<'a> = Records<'a, OutboxRecord>;

impl Journal {
    /// What arrived.
    pub fn inbox(&self) -> Inbox<'_> {
        Records { journal: self, record: std::marker::PhantomData }
    }

    /// What is sent.
    pub fn outbox(&self) -> Outbox<'_> {
        Records { journal: self, record: std::marker::PhantomData }
    }

    /// Under which name and epoch this process owns records.
    pub fn owner(&self) -> Owner {
        self.inner.session.owner()
    }

    /// What the backend claims.
    pub fn caps(&self) -> Caps {
        self.inner.committer.kv().caps()
    }

    /// A place in the order of arrival, in microseconds: larger than every earlier one of this process, and where the backend
    /// has a clock, as much later than those of other processes as it was asked for later.
    pub fn next_order(&self, now: Timestamp) -> i64 {
        self.next_order_after(i64::MIN, now)
    }

    /// As [`next_order`](Self::next_order), and larger than `after`, which another process may have given.
    pub fn next_order_after(&self, after: i64, now: Timestamp) -> i64 {
        let millis = now.as_millis().saturating_mul(1000);
        let within = self.backend_micros().map_or(0, |micros| micros.saturating_sub(millis).clamp(0, 999));
        let micros = millis.saturating_add(within).max(after.saturating_add(1));
        let last = self
            .inner
            .order
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(micros.max(last + 1)));
        micros.max(last.unwrap_or(0) + 1)
    }

    /// Makes changes durable, all in one commit. Each succeeds or loses by itself. A reply lost on the wire is resolved
    /// by reading back; failures without effect are tried again for about two seconds.
    ///
    /// # Errors
    /// The backend's failure, after the retries.
    ///
    /// # Cancel safety
    /// Each change of a dropped call happens wholly or not at all.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Cas<Version>>, StoreError> {
        self.inner.committer.commit(changes, None).await
    }

    /// As [`commit`](Self::commit), but goes on trying until `until` is cancelled, with delays of up to 5 s.
    ///
    /// # Errors
    /// A failure that no retry can mend, or the last one when `until` is cancelled.
    pub async fn commit_patiently(
        &self,
        changes: Vec<Change>,
        until: &CancellationToken,
    ) -> Result<Vec<Cas<Version>>, StoreError> {
        self.inner.committer.commit(changes, Some(until)).await
    }

    /// Makes one change durable; see [`commit`](Self::commit).
    ///
    /// # Errors
    /// The backend's failure, after the retries.
    pub async fn commit_one(&self, change: Change) -> Result<Cas<Version>, StoreError> {
        let outcomes = self.commit(vec![change]).await?;
        Ok(outcomes.into_iter().next().unwrap_or(Cas::Lost))
    }

    /// Makes a change recognisable, for a caller that may go away while it is committed; see
    /// [`find_out`](Self::find_out).
    pub fn identified(&self, change: Change) -> Change {
        self.inner.committer.identified(change)
    }

    /// Finds out what became of an [`identified`](Self::identified) change whose commit was dropped. To look would not be
    /// enough, because the write may still be under way: it is made again unless it is there already. Goes on trying until
    /// `until` is cancelled.
    ///
    /// # Errors
    /// As [`commit_patiently`](Self::commit_patiently).
    pub async fn find_out(
        &self,
        change: Change,
        until: &CancellationToken,
    ) -> Result<Cas<Version>, StoreError> {
        let outcomes = self.inner.committer.find_out(vec![change], Some(until)).await?;
        Ok(outcomes.into_iter().next().unwrap_or(Cas::Lost))
    }

    /// Tells the other processes that this one lives, by one write on a connection of its own where the backend has one.
    /// Call it every third of the shorter lease, always from the same thread, which nothing else keeps busy.
    ///
    /// # Errors
    /// The backend's failure; what is owned stays owned until the lease runs out.
    ///
    /// # Cancel safety
    /// A dropped beat may still take effect; the next one notices.
    pub async fn beat(&self) -> Result<Beat, StoreError> {
        let connect = async || {
            let own = self.inner.ungrouped.dedicated().await?;
            let dedicated = own.is_some();
            let kv = own.unwrap_or_else(|| Arc::clone(&self.inner.ungrouped));
            let committer = Committer::new(kv, self.inner.committer.seams().clone());
            Ok::<_, StoreError>(Heart { committer, dedicated })
        };
        let heart = self.inner.heart.get_or_try_init(connect).await?;
        self.inner.session.beat(&heart.committer).await
    }

    /// Until when this process may act on what it owns.
    pub fn lease(&self) -> &Lease {
        self.inner.session.lease()
    }

    /// Gives up what this process owns: others may adopt it at once. Closes the connection of the beats.
    ///
    /// # Errors
    /// The backend's failure; then others adopt it when the lease runs out.
    pub async fn end_session(&self) -> Result<(), StoreError> {
        let Some(heart) = self.inner.heart.get() else {
            return self.inner.session.end(&self.inner.committer).await;
        };
        let ended = self.inner.session.end(&heart.committer).await;
        if heart.dedicated {
            heart.committer.kv().close().await?;
        }
        ended
    }

    /// Who is alive, as far as the backend knows now.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn sessions(&self) -> Result<Sessions, StoreError> {
        Sessions::load(&self.inner.committer, &self.inner.session).await
    }

    /// Records of both journals whose next attempt is due, earliest first. Nothing that is not due is read.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn due(&self, now: Timestamp, after: Option<&Cursor>, limit: usize) -> Result<Due, StoreError> {
        let range = Range::Due { until: now };
        let entries = self.inner.committer.kv().scan(range, after, limit).await?;
        Ok(Due {
            inbox: Page::from_entries(range, &entries, limit),
            outbox: Page::from_entries(range, &entries, limit),
        })
    }

    /// Removes the records of a page of those that reached a state before `before`: for states in which nobody works on
    /// them. One that was changed meanwhile stays, and so does one that this version cannot read.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn purge<R: Record>(
        &self,
        state: R::State,
        before: Timestamp,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Purged, StoreError> {
        let records: Records<'_, R> = Records { journal: self, record: std::marker::PhantomData };
        let page = records.list_until(state, before.as_millis() - 1, after, limit).await?;
        let changes: Vec<Change> = page.records.iter().map(Change::delete).collect();
        let outcomes = if changes.is_empty() { Vec::new() } else { self.commit(changes).await? };
        let removed = outcomes.into_iter().filter(|outcome| matches!(outcome, Cas::Applied(_))).count();
        Ok(Purged { removed, next: page.next })
    }

    /// Removes the sessions in `sessions` that had run out when they were loaded. Call it after everything they owned
    /// was adopted.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn remove_expired(&self, sessions: &Sessions) -> Result<usize, StoreError> {
        sessions.remove_expired(&self.inner.committer).await
    }

    /// The time of the backend where it has a clock of its own, else of this process.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.committer.now().await
    }

    /// As [`now`](Self::now), without asking: where the backend has a clock, from what it said so far, to about a round trip.
    /// All processes agree on it, and it does not follow this host's wall clock when that steps.
    pub fn estimated_now(&self) -> Timestamp {
        match self.backend_micros() {
            Some(micros) => Timestamp::from_millis(micros.div_euclid(1000)),
            None => self.inner.committer.seams().clock.now(),
        }
    }

    fn backend_micros(&self) -> Option<i64> {
        self.inner.session.backend_micros(self.inner.committer.seams().clock.monotonic())
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("owner", &self.owner()).finish_non_exhaustive()
    }
}

/// The records of one journal.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a, R> {
    journal: &'a Journal,
    record: std::marker::PhantomData<R>,
}

impl<'a, R: Record> Records<'a, R> {
    async fn read(&self, id: &str) -> Result<Option<Stored<R>>, StoreError> {
        let kv = self.journal.inner.committer.kv();
        let entry = kv.get(&[record::key::<R>(id)]).await?.into_iter().next().flatten();
        entry.map(|entry| record::decode(&entry)).transpose()
    }

    async fn page(&self, range: Range, after: Option<&Cursor>, limit: usize) -> Result<Page<R>, StoreError> {
        let limit = limit.min(MAX_PAGE);
        let entries = self.journal.inner.committer.kv().scan(range, after, limit).await?;
        Ok(Page::from_entries(range, &entries, limit))
    }

    /// A page of the records in a state: at most `limit`, and at most 1,000. In a stable order: messages that are being
    /// processed by arrival, sends in flight or waiting by chat, the others by when they reached the state. Records that this
    /// version cannot read are told apart and hide none of the others.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn list(
        &self,
        state: R::State,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<R>, StoreError> {
        self.list_until(state, i64::MAX, after, limit).await
    }

    /// All records in a state, page by page, as [`list`](Self::list) orders them.
    pub fn pages(self, state: R::State) -> Pages<'a, R> {
        Pages { records: self, state, next: Some(None) }
    }

    /// Records that reached a state at `until` or before, as [`list`](Self::list) orders them.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn list_until(
        &self,
        state: R::State,
        until: i64,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<R>, StoreError> {
        self.page(Range::List { bucket: R::bucket(state), from: i64::MIN, until }, after, limit).await
    }

    /// How many records reached a state before `before`, those that cannot be read included. Counts up to `max`.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn count(&self, state: R::State, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        let kv = self.journal.inner.committer.kv();
        let range = Range::List { bucket: R::bucket(state), from: i64::MIN, until: before.as_millis() - 1 };
        let (mut count, mut after) = (0, None);
        loop {
            let entries = kv.scan(range, after.as_ref(), MAX_PAGE).await?;
            count += entries.iter().filter(|entry| entry.key.first() == Some(&R::PREFIX)).count();
            match entries.last().filter(|_| entries.len() == MAX_PAGE && count < max) {
                Some(last) => after = range.cursor(last),
                None => return Ok(count.min(max)),
            }
        }
    }
}

/// Goes through all records in a state; see [`Records::pages`]. A record that changes its state meanwhile may be missed.
#[derive(Debug)]
pub struct Pages<'a, R: Record> {
    records: Records<'a, R>,
    state: R::State,
    /// Where the next page begins: `Some(None)` for the first one, `None` after the last one.
    next: Option<Option<Cursor>>,
}

impl<R: Record> Pages<'_, R> {
    /// The next page of up to 200 records; `None` after the last one.
    ///
    /// # Errors
    /// The backend's failure. The next call tries the same page again.
    ///
    /// # Cancel safety
    /// A dropped call is as if it had not been made.
    pub async fn next(&mut self) -> Result<Option<Page<R>>, StoreError> {
        const PAGE: usize = 200;
        let Some(after) = &self.next else { return Ok(None) };
        let page = self.records.list(self.state, after.as_ref(), PAGE).await?;
        self.next = page.next.clone().map(Some);
        Ok(Some(page))
    }
}

impl Records<'_, InboxRecord> {
    /// One record.
    ///
    /// # Errors
    /// The backend's failure, or a record of an unknown format.
    pub async fn get(&self, id: &RecordId) -> Result<Option<Stored<InboxRecord>>, StoreError> {
        self.read(id.as_str()).await
    }
}

impl Records<'_, OutboxRecord> {
    /// One record.
    ///
    /// # Errors
    /// The backend's failure, or a record of an unknown format.
    pub async fn get(&self, key: &SendKey) -> Result<Option<Stored<OutboxRecord>>, StoreError> {
        self.read(key.as_str()).await
    }

    /// Several records, in the order of the keys.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_all(&self, keys: &[SendKey]) -> Result<Vec<Option<Stored<OutboxRecord>>>, StoreError> {
        let keys: Vec<Bytes> = keys.iter().map(|key| record::key::<OutboxRecord>(key.as_str())).collect();
        let entries = self.journal.inner.committer.kv().get(&keys).await?;
        entries.iter().map(|entry| entry.as_ref().map(record::decode).transpose()).collect()
    }

    /// The sends of a chat that are in flight or waiting, earliest first, of those after the place `after`
    /// ([`OutboxRecord::place`]): at most `limit` of them, of however many. Costs
    /// as much as there are of them in this chat. Records that this version cannot read are not among them.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn unfinished_of(
        &self,
        chat: &ChatId,
        after: Option<(i64, u32)>,
        limit: usize,
    ) -> Result<Vec<Stored<OutboxRecord>>, StoreError> {
        const PAGE: usize = 200;
        let is_later = |record: &OutboxRecord| after.is_none_or(|after| record.place() > after);
        let mut earliest: Vec<Stored<OutboxRecord>> = Vec::new();
        for state in [OutboxState::InFlight, OutboxState::Waiting] {
            let mut cursor = None;
            loop {
                let page = self.list_of(chat, state, cursor.as_ref(), PAGE).await?;
                earliest.extend(page.records.into_iter().filter(|stored| is_later(&stored.record)));
                earliest.sort_by_key(|stored| stored.record.place());
                earliest.truncate(limit);
                match page.next {
                    Some(next) => cursor = Some(next),
                    None => break,
                }
            }
        }
        Ok(earliest)
    }

    /// The sends of a chat in one of the states [`InFlight`](OutboxState::InFlight) and [`Waiting`](OutboxState::Waiting),
    /// in a stable order. The others are not found by their chat.
    ///
    /// # Errors
    /// The backend's failure.
    pub async fn list_of(
        &self,
        chat: &ChatId,
        state: OutboxState,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<OutboxRecord>, StoreError> {
        let place = outbox::place_of_chat(chat);
        let range = Range::List { bucket: OutboxRecord::bucket(state), from: place, until: place };
        let mut page = self.page(range, after, limit).await?;
        // Another chat may have the same place.
        page.records.retain(|stored| stored.record.chat == *chat);
        Ok(page)
    }
}
