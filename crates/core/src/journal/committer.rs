use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::record::{self, Record, Stored, WriteId};
use crate::error::{Cas, Effect, StoreError};
use crate::kv::{DurableKv, Expect, Index, Op, Outcome, Version};
use crate::spawn::Seams;
use crate::time::Timestamp;

/// How often a commit is tried again unless the caller has more patience, and the delays: the first, doubled each time
/// up to the last.
const RETRIES: u32 = 5;
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LAST_DELAY: Duration = Duration::from_secs(5);

/// One change of one record.
#[derive(Clone, Debug)]
pub struct Change {
    key: Bytes,
    kind: Kind,
    /// Chosen when it is committed, unless it must be recognised later.
    write: Option<WriteId>,
}

#[derive(Clone, Debug)]
enum Kind {
    Put { expect: Expect, value: Result<Vec<u8>, StoreError>, index: Index },
    Delete { expect: Version },
}

impl Change {
    /// Writes a record that must not be there yet.
    pub fn insert<R: Record>(record: &R) -> Self {
        Self::put(record, Expect::Absent)
    }

    /// Replaces the record that was read at `version`.
    pub fn update<R: Record>(version: Version, next: &R) -> Self {
        Self::put(next, Expect::Version(version))
    }

    /// Removes a record.
    pub fn delete<R: Record>(stored: &Stored<R>) -> Self {
        Self {
            key: record::key::<R>(stored.record.id()),
            kind: Kind::Delete { expect: stored.version },
            write: None,
        }
    }

    fn put<R: Record>(record: &R, expect: Expect) -> Self {
        let kind = Kind::Put { expect, value: record::encode(record), index: record.index() };
        Self { key: record::key::<R>(record.id()), kind, write: None }
    }

    fn into_op(self, new_write_id: impl FnOnce() -> WriteId) -> Result<Op, StoreError> {
        let write = self.write.unwrap_or_else(new_write_id);
        let key = self.key;
        match self.kind {
            Kind::Put { expect, value, index } => {
                let mut value = value?;
                value[..write.len()].copy_from_slice(&write);
                Ok(Op::Put { key, expect, value: value.into(), index })
            }
            Kind::Delete { expect } => Ok(Op::Delete { key, expect }),
        }
    }
}

/// Commits changes and finds out what became of them when an answer is lost.
pub(super) struct Committer {
    kv: Arc<dyn DurableKv>,
    seams: Seams,
}

impl Committer {
    pub(super) fn new(kv: Arc<dyn DurableKv>, seams: Seams) -> Self {
        Self { kv, seams }
    }

    pub(super) fn kv(&self) -> &Arc<dyn DurableKv> {
        &self.kv
    }

    pub(super) fn seams(&self) -> &Seams {
        &self.seams
    }

    pub(super) async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.kv.now().await?.unwrap_or_else(|| self.seams.clock.now()))
    }

    pub(super) async fn commit(
        &self,
        changes: Vec<Change>,
        until: Option<&CancellationToken>,
    ) -> Result<Vec<Cas<Version>>, StoreError> {
        let ops = self.ops(changes)?;
        match self.kv.commit(ops.clone()).await {
            Ok(outcomes) => Ok(outcomes.into_iter().map(cas).collect()),
            // What is rare takes no room in every caller.
            Err(error) => Box::pin(self.commit_again(ops, Some(error), until)).await,
        }
    }

    /// Makes a change recognisable for [`find_out`](Self::find_out).
    pub(super) fn identified(&self, change: Change) -> Change {
        Change { write: Some(self.new_write_id()), ..change }
    }

    /// Commits identified changes again whose commit was dropped.
    pub(super) async fn find_out(
        &self,
        changes: Vec<Change>,
        until: Option<&CancellationToken>,
    ) -> Result<Vec<Cas<Version>>, StoreError> {
        Box::pin(self.commit_again(self.ops(changes)?, None, until)).await
    }

    fn ops(&self, changes: Vec<Change>) -> Result<Vec<Op>, StoreError> {
        let mut ops = Vec::with_capacity(changes.len());
        for change in changes {
            ops.push(change.into_op(|| self.new_write_id())?);
        }
        Ok(ops)
    }

    fn new_write_id(&self) -> WriteId {
        let entropy = &self.seams.entropy;
        let mut id = WriteId::default();
        let (high, low) = id.split_at_mut(8);
        high.copy_from_slice(&entropy.next_u64().to_be_bytes());
        low.copy_from_slice(&entropy.next_u64().to_be_bytes());
        id
    }

    /// `first` is how the first attempt failed; `None` if nobody knows.
    async fn commit_again(
        &self,
        ops: Vec<Op>,
        first: Option<StoreError>,
        until: Option<&CancellationToken>,
    ) -> Result<Vec<Cas<Version>>, StoreError> {
        let mut known: Vec<Option<Cas<Version>>> = vec![None; ops.len()];
        // Once unknown, always unknown: a later failure without effect says nothing of the earlier attempt.
        let mut unknown = first.is_none();
        let mut error = first;
        let (mut retry, mut delay) = (0, FIRST_DELAY);
        loop {
            if let Some(failed) = error.take() {
                unknown |= failed.effect() == Effect::Unknown;
                let patient = until.map_or(retry < RETRIES, |until| !until.is_cancelled());
                if !failed.retry() || !patient {
                    return Err(if unknown { failed.with_unknown_effect() } else { failed });
                }
                self.seams.clock.sleep(delay).await;
                retry += 1;
                delay = (delay * 2).min(LAST_DELAY);
            }
            if unknown && let Err(failed) = self.read_back(&ops, &mut known).await {
                error = Some(failed);
                continue;
            }
            let open: Vec<usize> = (0..ops.len()).filter(|&i| known[i].is_none()).collect();
            if open.is_empty() {
                return Ok(known.into_iter().flatten().collect());
            }
            match self.kv.commit(open.iter().map(|&i| ops[i].clone()).collect()).await {
                Ok(outcomes) => {
                    for (i, outcome) in open.into_iter().zip(outcomes) {
                        known[i] = Some(cas(outcome)).filter(|cas| !unknown || *cas != Cas::Lost);
                    }
                }
                Err(failed) => {
                    error = Some(failed);
                    continue;
                }
            }
            // An earlier attempt may have taken effect just before this one, which then lost against its own.
            if known.contains(&None)
                && let Err(failed) = self.read_back(&ops, &mut known).await
            {
                error = Some(failed);
                continue;
            }
            return Ok(known.into_iter().map(|known| known.unwrap_or(Cas::Lost)).collect());
        }
    }

    /// Recognises the writes that are already there.
    async fn read_back(&self, ops: &[Op], known: &mut [Option<Cas<Version>>]) -> Result<(), StoreError> {
        let keys: Vec<Bytes> = ops.iter().map(|op| op.key().clone()).collect();
        let entries = self.kv.get(&keys).await?;
        for ((op, entry), known) in ops.iter().zip(entries).zip(known) {
            match (op, entry) {
                (Op::Put { value, .. }, Some(entry))
                    if record::write_id(&entry) == value.get(..size_of::<WriteId>()) =>
                {
                    *known = Some(Cas::Applied(entry.version));
                }
                (Op::Delete { expect, .. }, entry)
                    if entry.as_ref().is_none_or(|entry| entry.version != *expect) =>
                {
                    *known = Some(Cas::Applied(*expect));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn cas(outcome: Outcome) -> Cas<Version> {
    match outcome {
        Outcome::Applied(version) => Cas::Applied(version),
        Outcome::Conflict(_) => Cas::Lost,
    }
}
