use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::committer::{Change, Committer};
use super::lease::{Lease, Leased, Leases};
use super::record::{self, FORMAT, Owner, Page, Record, Stored};
use crate::error::{Cas, LeaseLostReason, StoreError, StoreErrorKind};
use crate::id::InstanceId;
use crate::kv::{Index, Range, Version};
use crate::time::Timestamp;

const BUCKET: u8 = 21;
const PAGE: usize = 500;

/// How often a session is opened or renewed although somebody else wrote it meanwhile.
const TRIES: usize = 10;

/// The backend has no clock of its own.
const NO_CLOCK: i64 = i64::MIN;

/// How often the backend's clock is read at the start. It tells whole milliseconds: of several readings, one is soon after
/// such a millisecond began, and was answered at once.
const READINGS: usize = 8;

/// One instance that owns or owned records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    #[serde(deserialize_with = "super::record::format")]
    v: u32,
    instance: InstanceId,
    epoch: u64,
    /// Until when it keeps its messages.
    expires: Timestamp,
    /// Until when it keeps its sends, if not as long as its messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sends_expire: Option<Timestamp>,
}

impl SessionRecord {
    fn new(owner: &Owner, now: Timestamp, leases: Leases) -> Self {
        let (expires, sends_expire) = (now + leases.messages, now + leases.sends);
        Self {
            v: FORMAT,
            instance: owner.instance.clone(),
            epoch: owner.epoch,
            expires,
            sends_expire: (sends_expire != expires).then_some(sends_expire),
        }
    }

    fn owner(&self) -> Owner {
        Owner { instance: self.instance.clone(), epoch: self.epoch }
    }

    /// Until when it keeps what is `leased`.
    fn end(&self, leased: Leased) -> Timestamp {
        match leased {
            Leased::Messages => self.expires,
            Leased::Sends => self.sends_expire.unwrap_or(self.expires),
        }
    }

    /// Until when it keeps anything.
    fn last_end(&self) -> Timestamp {
        self.end(Leased::Messages).max(self.end(Leased::Sends))
    }
}

impl Record for SessionRecord {
    type State = ();
    const PREFIX: u8 = b's';
    const JOURNAL: &'static str = "sessions";

    fn id(&self) -> &str {
        self.instance.as_str()
    }

    fn index(&self) -> Index {
        Index { due: None, list: Some((BUCKET, self.last_end().as_millis())) }
    }

    fn bucket((): ()) -> u8 {
        BUCKET
    }
}

/// The outcome of [`Journal::beat`](super::Journal::beat).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Beat {
    /// This process owns its records for another lease.
    Alive,
    /// Another process started under the same instance id: this one owns nothing any more and never will again.
    Superseded,
    /// The session ran out, others took over what this process owned, and removed the session: it owns nothing any more
    /// and never will again.
    Expired,
}

/// What became of a session's write.
enum Written {
    Applied,
    Superseded,
    Removed,
}

/// This process's session.
pub(super) struct Session {
    owner: Owner,
    lease: Lease,
    version: Mutex<Version>,
    /// What is added to the monotonic clock for the backend's time, in microseconds.
    backend_offset: AtomicI64,
    wall: Mutex<Wall>,
}

/// How this host's wall clock went so far, where leases are compared with it.
struct Wall {
    /// The wall clock, less the monotonic one, in milliseconds.
    offset: i64,
    /// From when on, on the monotonic clock, leases that look expired are.
    trusted_from: Duration,
}

fn signed_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn signed_micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// How far the backend's clock is ahead of the monotonic one, in microseconds, after it said `now` between `asked` and
/// `answered`. What is `known` stays if it can be: an answer that came late tells less.
fn offset_after(known: i64, now: Timestamp, asked: Duration, answered: Duration) -> i64 {
    let now = now.as_millis().saturating_mul(1000);
    let least = now.saturating_sub(signed_micros(answered));
    let most = now.saturating_add(999).saturating_sub(signed_micros(asked));
    known.max(least).min(most)
}

impl Session {
    pub(super) async fn open(
        committer: &Committer,
        instance: InstanceId,
        leases: Leases,
    ) -> Result<Self, StoreError> {
        let clock = &committer.seams().clock;
        for _ in 0..TRIES {
            let asked = clock.monotonic();
            let now = committer.now().await?;
            let stored = read(committer, &instance).await?;
            let last = stored.as_ref().map_or(0, |stored| stored.record.epoch);
            // Not a plain counter: expired sessions are removed, and an epoch must not come back after that.
            let epoch = (last + 1).max(u64::try_from(now.as_millis()).unwrap_or(0));
            let owner = Owner { instance: instance.clone(), epoch };
            let next = SessionRecord::new(&owner, now, leases);
            let change = match &stored {
                None => Change::insert(&next),
                Some(stored) => Change::update(stored.version, &next),
            };
            if let Some(Cas::Applied(version)) = committer.commit(vec![change], None).await?.first() {
                let offset = clock.now().as_millis().saturating_sub(signed_millis(clock.monotonic()));
                let session = Self {
                    owner,
                    lease: Lease::new(std::sync::Arc::clone(clock), leases, asked),
                    version: Mutex::new(*version),
                    backend_offset: AtomicI64::new(NO_CLOCK),
                    wall: Mutex::new(Wall { offset, trusted_from: Duration::ZERO }),
                };
                for _ in 0..READINGS {
                    session.read_clock(committer).await?;
                }
                return Ok(session);
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Misuse,
            "sessions",
            "open",
            format!(
                "several processes are starting as instance {instance} at once; give each its own instance id"
            ),
        ))
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner.clone()
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The backend's time as far as it is known without asking, in microseconds since 1970; `None` where it has no clock.
    pub(super) fn backend_micros(&self, monotonic: Duration) -> Option<i64> {
        match self.backend_offset.load(Ordering::Relaxed) {
            NO_CLOCK => None,
            offset => Some(offset.saturating_add(signed_micros(monotonic))),
        }
    }

    /// The time that leases are compared with, and whether it can be trusted.
    ///
    /// Where that is this host's wall clock, and it steps forward, every lease looks as if it had run out. The processes
    /// that are alive beat within a lease, and are then seen to be.
    async fn read_clock(&self, committer: &Committer) -> Result<(Timestamp, bool), StoreError> {
        let clock = &committer.seams().clock;
        let asked = clock.monotonic();
        let backend = committer.kv().now().await?;
        let monotonic = clock.monotonic();
        if let Some(now) = backend {
            let offset = |known| Some(offset_after(known, now, asked, monotonic));
            let _ = self.backend_offset.fetch_update(Ordering::Relaxed, Ordering::Relaxed, offset);
            return Ok((now, true));
        }
        let now = clock.now();
        let offset = now.as_millis().saturating_sub(signed_millis(monotonic));
        let leases = self.lease.leases();
        let mut wall = self.wall();
        if offset.saturating_sub(wall.offset) > signed_millis(leases.shorter() / 3) {
            wall.trusted_from = monotonic + leases.longer();
        }
        wall.offset = offset;
        Ok((now, monotonic >= wall.trusted_from))
    }

    fn wall(&self) -> MutexGuard<'_, Wall> {
        self.wall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn beat(&self, committer: &Committer) -> Result<Beat, StoreError> {
        self.lease.beating();
        let asked = committer.seams().clock.monotonic();
        let (now, _) = self.read_clock(committer).await?;
        let next = SessionRecord::new(&self.owner, now, self.lease.leases());
        match self.write(committer, &next).await? {
            Written::Applied => {
                self.lease.renew(asked);
                Ok(Beat::Alive)
            }
            Written::Superseded => {
                self.lease.end(LeaseLostReason::Superseded);
                Ok(Beat::Superseded)
            }
            Written::Removed => {
                self.lease.end(LeaseLostReason::Expired);
                Ok(Beat::Expired)
            }
        }
    }

    pub(super) async fn end(&self, committer: &Committer) -> Result<(), StoreError> {
        self.lease.end(LeaseLostReason::Released);
        let past = committer.now().await? - Duration::from_millis(1);
        let _ = self.write(committer, &SessionRecord::new(&self.owner, past, Duration::ZERO.into())).await?;
        Ok(())
    }

    /// Writes the session unless it is another's. A beat that was given up may have taken effect late, and is recognised
    /// by its epoch.
    async fn write(&self, committer: &Committer, next: &SessionRecord) -> Result<Written, StoreError> {
        for _ in 0..TRIES {
            let version = *self.version();
            if let Some(Cas::Applied(version)) =
                committer.commit(vec![Change::update(version, next)], None).await?.first()
            {
                *self.version() = *version;
                return Ok(Written::Applied);
            }
            match read(committer, &self.owner.instance).await {
                Ok(None) => return Ok(Written::Removed),
                Ok(Some(stored)) if stored.record.epoch == self.owner.epoch => {
                    *self.version() = stored.version;
                }
                Ok(Some(_)) => return Ok(Written::Superseded),
                // A newer version of the program wrote it.
                Err(error) if error.kind() == StoreErrorKind::Incompatible => return Ok(Written::Superseded),
                Err(error) => return Err(error),
            }
        }
        let message = format!("the session of {} is written too often at once", self.owner.instance);
        Err(StoreError::new(StoreErrorKind::Unavailable, "sessions", "beat", message))
    }

    fn version(&self) -> MutexGuard<'_, Version> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(
    committer: &Committer,
    instance: &InstanceId,
) -> Result<Option<Stored<SessionRecord>>, StoreError> {
    let key = record::key::<SessionRecord>(instance.as_str());
    let entry = committer.kv().get(&[key]).await?.into_iter().next().flatten();
    entry.map(|entry| record::decode(&entry)).transpose()
}

/// Who was alive at one moment.
#[derive(Clone, Debug)]
pub struct Sessions {
    asker: Owner,
    /// What leases are compared with; `None` while it cannot be trusted, and then none has run out.
    now: Option<Timestamp>,
    sessions: HashMap<InstanceId, Stored<SessionRecord>>,
    /// Instances whose session this version cannot read.
    unreadable: HashSet<InstanceId>,
}

impl Sessions {
    pub(super) async fn load(committer: &Committer, session: &Session) -> Result<Self, StoreError> {
        let (now, trusted) = session.read_clock(committer).await?;
        let (asker, now) = (session.owner(), trusted.then_some(now));
        let range = Range::List { bucket: BUCKET, from: i64::MIN, until: i64::MAX };
        let (mut sessions, mut unreadable) = (HashMap::new(), HashSet::new());
        let mut after = None;
        loop {
            let entries = committer.kv().scan(range, after.as_ref(), PAGE).await?;
            let page: Page<SessionRecord> = Page::from_entries(range, &entries, PAGE);
            sessions.extend(page.records.into_iter().map(|stored| (stored.record.instance.clone(), stored)));
            unreadable.extend(page.unreadable.into_iter().map(|unreadable| InstanceId::from(unreadable.key)));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let sessions = Self { asker, now, sessions, unreadable };
        if sessions.is_superseded(&sessions.asker) {
            session.lease.end(LeaseLostReason::Superseded);
        }
        Ok(sessions)
    }

    /// Whether what `owner` left is for the asking process to take over: the owner's session ran out or was removed, or
    /// the owner is an earlier start of the asker's own instance.
    ///
    /// What an earlier start of another living instance left is that instance's: if two processes shared it, the messages
    /// of one chat would be handled by both, in any order.
    pub fn has_lost(&self, owner: &Owner, leased: Leased) -> bool {
        match self.sessions.get(&owner.instance) {
            // An instance of a newer version may be alive.
            None => !self.unreadable.contains(&owner.instance),
            Some(Stored { record, .. }) => {
                let earlier_self = owner.instance == self.asker.instance && record.epoch > owner.epoch;
                earlier_self || self.is_past(record.end(leased))
            }
        }
    }

    /// Whether nobody alive is to finish a record that names `owner`, so that the asking process takes it over.
    pub fn is_orphan(&self, owner: Option<&Owner>, leased: Leased) -> bool {
        owner.is_none_or(|owner| *owner != self.asker && self.has_lost(owner, leased))
    }

    /// Whether `owner` has lost its messages and its sends; see [`has_lost`](Self::has_lost).
    pub fn is_dead(&self, owner: &Owner) -> bool {
        self.has_lost(owner, Leased::Messages) && self.has_lost(owner, Leased::Sends)
    }

    fn is_past(&self, end: Timestamp) -> bool {
        self.now.is_some_and(|now| end < now)
    }

    /// Whether a later start of the owner's instance took its place.
    pub fn is_superseded(&self, owner: &Owner) -> bool {
        self.sessions.get(&owner.instance).is_some_and(|stored| stored.record.epoch > owner.epoch)
    }

    /// The other processes whose session ran out, and what they lost.
    pub fn ended(&self) -> HashSet<(Owner, Leased)> {
        let both = |stored: &Stored<SessionRecord>| {
            [Leased::Messages, Leased::Sends].map(|leased| (stored.record.end(leased), leased))
        };
        self.others()
            .flat_map(|stored| both(stored).map(|(end, leased)| (end, (stored.record.owner(), leased))))
            .filter(|(end, _)| self.is_past(*end))
            .map(|(_, ended)| ended)
            .collect()
    }

    fn others(&self) -> impl Iterator<Item = &Stored<SessionRecord>> {
        self.sessions.values().filter(|stored| stored.record.instance != self.asker.instance)
    }

    /// How many sessions are known, dead ones included.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether no session is known.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub(super) async fn remove_expired(&self, committer: &Committer) -> Result<usize, StoreError> {
        let expired = self.others().filter(|stored| self.is_past(stored.record.last_end()));
        let changes: Vec<Change> = expired.map(Change::delete).collect();
        if changes.is_empty() {
            return Ok(0);
        }
        let outcomes = committer.commit(changes, None).await?;
        Ok(outcomes.into_iter().filter(|outcome| matches!(outcome, Cas::Applied(_))).count())
    }
}
