use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::committer::{Change, Committer};
use super::record::{self, FORMAT, Owner, Page, Record, Stored};
use crate::error::{Cas, StoreError, StoreErrorKind};
use crate::id::InstanceId;
use crate::kv::{Index, Range, Version};
use crate::time::Timestamp;

const BUCKET: u8 = 21;
const PAGE: usize = 500;

/// One instance that owns or owned records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SessionRecord {
    #[serde(deserialize_with = "super::record::format")]
    v: u32,
    instance: InstanceId,
    epoch: u64,
    expires: Timestamp,
}

impl Record for SessionRecord {
    type State = ();
    const PREFIX: u8 = b's';
    const JOURNAL: &'static str = "sessions";

    fn id(&self) -> &str {
        self.instance.as_str()
    }

    fn index(&self) -> Index {
        Index { due: None, list: Some((BUCKET, self.expires.as_millis())) }
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
    /// Another process started under the same instance id, or the session ran out and was removed: this one owns
    /// nothing any more and never will again.
    Superseded,
}

/// This process's session.
pub(super) struct Session {
    owner: Owner,
    lease: Duration,
    version: Mutex<Version>,
}

impl Session {
    pub(super) async fn open(
        committer: &Committer,
        instance: InstanceId,
        lease: Duration,
    ) -> Result<Self, StoreError> {
        const TRIES: usize = 10;
        for _ in 0..TRIES {
            let now = committer.now().await?;
            let key = record::key::<SessionRecord>(instance.as_str());
            let entry = committer.kv().get(&[key]).await?.into_iter().next().flatten();
            let stored: Option<Stored<SessionRecord>> =
                entry.map(|entry| record::decode(&entry)).transpose()?;
            let last = stored.as_ref().map_or(0, |stored| stored.record.epoch);
            // Not a plain counter: expired sessions are removed, and an epoch must not come back after that.
            let epoch = (last + 1).max(u64::try_from(now.as_millis()).unwrap_or(0));
            let next = SessionRecord { v: FORMAT, instance: instance.clone(), epoch, expires: now + lease };
            let change = match &stored {
                None => Change::insert(&next),
                Some(stored) => Change::update(stored.version, &next),
            };
            if let Some(Cas::Applied(version)) = committer.commit(vec![change], None).await?.first() {
                let owner = Owner { instance, epoch };
                return Ok(Self { owner, lease, version: Mutex::new(*version) });
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

    pub(super) async fn beat(&self, committer: &Committer) -> Result<Beat, StoreError> {
        let expires = committer.now().await? + self.lease;
        self.renew(committer, expires).await
    }

    pub(super) async fn end(&self, committer: &Committer) -> Result<(), StoreError> {
        let _ = self.renew(committer, committer.now().await? - Duration::from_millis(1)).await?;
        Ok(())
    }

    async fn renew(&self, committer: &Committer, expires: Timestamp) -> Result<Beat, StoreError> {
        let Owner { instance, epoch } = self.owner.clone();
        let version = *self.version.lock().unwrap_or_else(PoisonError::into_inner);
        let next = SessionRecord { v: FORMAT, instance, epoch, expires };
        match committer.commit(vec![Change::update(version, &next)], None).await?.first() {
            Some(Cas::Applied(version)) => {
                *self.version.lock().unwrap_or_else(PoisonError::into_inner) = *version;
                Ok(Beat::Alive)
            }
            _ => Ok(Beat::Superseded),
        }
    }
}

/// Who was alive at one moment.
#[derive(Clone, Debug)]
pub struct Sessions {
    asker: InstanceId,
    now: Timestamp,
    sessions: HashMap<InstanceId, Stored<SessionRecord>>,
    /// Instances whose session this version cannot read.
    unreadable: HashSet<InstanceId>,
}

impl Sessions {
    pub(super) async fn load(committer: &Committer, asker: InstanceId) -> Result<Self, StoreError> {
        let now = committer.now().await?;
        let range = Range::List { bucket: BUCKET, from: i64::MIN, until: i64::MAX };
        let (mut sessions, mut unreadable) = (HashMap::new(), HashSet::new());
        let mut after = None;
        loop {
            let entries = committer.kv().scan(range, after.as_ref(), PAGE).await?;
            let page: Page<SessionRecord> = Page::from_entries(range, &entries, PAGE);
            sessions.extend(page.records.into_iter().map(|stored| (stored.record.instance.clone(), stored)));
            unreadable.extend(page.unreadable.into_iter().map(|(instance, _)| InstanceId::from(instance)));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(Self { asker, now, sessions, unreadable }),
            }
        }
    }

    /// Whether what `owner` left is for the asking process to take over: the owner's session ran out or was removed, or
    /// the owner is an earlier start of the asker's own instance.
    ///
    /// What an earlier start of another living instance left is that instance's: if two processes shared it, the messages
    /// of one chat would be handled by both, in any order.
    pub fn is_dead(&self, owner: &Owner) -> bool {
        match self.sessions.get(&owner.instance) {
            // An instance of a newer version may be alive.
            None => !self.unreadable.contains(&owner.instance),
            Some(Stored { record, .. }) => {
                let earlier_self = owner.instance == self.asker && record.epoch > owner.epoch;
                earlier_self || record.expires < self.now
            }
        }
    }

    /// Whether a later start of the owner's instance took its place.
    pub fn is_superseded(&self, owner: &Owner) -> bool {
        self.sessions.get(&owner.instance).is_some_and(|stored| stored.record.epoch > owner.epoch)
    }

    /// Whether the session of any instance ran out.
    pub fn any_expired(&self) -> bool {
        self.sessions.values().any(|stored| stored.record.expires < self.now)
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
        let expired = self.sessions.values().filter(|stored| stored.record.expires < self.now);
        let changes: Vec<Change> = expired.map(Change::delete).collect();
        if changes.is_empty() {
            return Ok(0);
        }
        let outcomes = committer.commit(changes, None).await?;
        Ok(outcomes.into_iter().filter(|outcome| matches!(outcome, Cas::Applied(_))).count())
    }
}
