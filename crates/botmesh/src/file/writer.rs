//! The thread that owns the files: it decides what applies, appends it, and only then shows it and answers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use botmesh_append_log::AppendLog;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::entry::Writing;
use super::error::{closed, from_log, poisoned, unreadable};
use super::options::FileOptions;
use super::state::State;
use crate::core::error::StoreError;
use crate::core::kv::{Op, Outcome, Version};

/// Bounds of one group: what is appended with one write and one sync. A single commit may be larger.
const MAX_OPS: usize = 4096;
const MAX_BYTES: usize = 8 << 20;

/// How often the thread gives way before it sleeps when it finds nothing to do: some 75 µs on an idle machine, nothing on
/// a busy one. The next commit of a chat that is alone comes within that time, and need not wake it then.
const YIELDS: u32 = 150;

/// What the thread is asked for.
pub(super) enum Message {
    Commit(Call),
    Close,
}

/// A commit that waits for its answer.
pub(super) struct Call {
    pub(super) scope: Arc<str>,
    pub(super) ops: Vec<Op>,
    pub(super) answer: oneshot::Sender<Result<Vec<Outcome>, StoreError>>,
}

impl Call {
    fn size(&self) -> usize {
        self.ops.iter().map(Op::size).sum()
    }
}

/// Calls that share one write.
#[derive(Default)]
struct Group {
    calls: Vec<Call>,
    ops: usize,
    bytes: usize,
}

impl Group {
    /// Adds a call, or gives it back when it is for the next group.
    fn add(&mut self, call: Call) -> Option<Call> {
        let (ops, bytes) = (self.ops + call.ops.len(), self.bytes + call.size());
        if !self.calls.is_empty() && (ops > MAX_OPS || bytes > MAX_BYTES) {
            return Some(call);
        }
        (self.ops, self.bytes) = (ops, bytes);
        self.calls.push(call);
        None
    }
}

/// The next message; `None` if there will never be any.
fn wait(messages: &mut mpsc::Receiver<Message>) -> Option<Message> {
    for _ in 0..YIELDS {
        match messages.try_recv() {
            Ok(message) => return Some(message),
            Err(mpsc::error::TryRecvError::Disconnected) => return None,
            Err(mpsc::error::TryRecvError::Empty) => std::thread::yield_now(),
        }
    }
    messages.blocking_recv()
}

/// What the readers see and the thread changes.
#[derive(Debug, Default)]
pub(super) struct Shared(RwLock<State>);

impl Shared {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the thread.
pub(super) struct Writer {
    log: AppendLog,
    state: Arc<Shared>,
    path: Arc<Path>,
    last_version: u64,
    /// The size of the snapshot: a log that is shorter is not folded into it.
    snapshot_bytes: u64,
}

impl Writer {
    /// Opens the files and reads them to `state`.
    pub(super) fn open(
        path: Arc<Path>,
        options: &FileOptions,
        state: Arc<Shared>,
    ) -> Result<Self, StoreError> {
        let fail = |error| from_log("open", error);
        let log = AppendLog::open(&path, options.for_log()).map_err(fail)?;
        let mut snapshot_bytes = 0;
        let mut filling = state.write();
        for (record, n) in log.snapshot().map_err(fail)?.into_iter().flatten().zip(1..) {
            let record = record.map_err(fail)?;
            snapshot_bytes += record.len() as u64;
            let place = || format!("record {n} of the snapshot");
            filling.replay(&record).map_err(|why| unreadable(&path, &place(), &why))?;
        }
        for entry in log.entries().map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let place = || format!("entry {} of the log", entry.sequence);
            filling.replay(&entry.payload).map_err(|why| unreadable(&path, &place(), &why))?;
        }
        let last_version = filling.last_version;
        drop(filling);
        if let Some(torn) = log.recovery().torn {
            tracing::warn!(
                path = %path.display(), offset = torn.offset, bytes = torn.bytes,
                "the log ended in a commit that a crash had cut short, and that nobody was promised: it is cut off"
            );
        }
        Ok(Self { log, state, path, last_version, snapshot_bytes })
    }

    /// Serves until it is told to close, all handles are gone, or a write fails half-way.
    pub(super) fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut next = None;
        let mut folding = false;
        while let Some(first) = next.take().or_else(|| wait(&mut messages)) {
            let mut group = Group::default();
            let mut candidate = Some(first);
            while let Some(message) = candidate {
                candidate = match message {
                    Message::Close => {
                        folding = true;
                        messages.close();
                        messages.try_recv().ok()
                    }
                    Message::Commit(call) => match group.add(call) {
                        None => messages.try_recv().ok(),
                        Some(call) => {
                            next = Some(Message::Commit(call));
                            None
                        }
                    },
                };
            }
            if let Err((failure, calls)) = self.serve(group.calls) {
                return self.give_up(&failure, calls, next, messages);
            }
        }
        if folding && let Err(error) = self.fold() {
            tracing::error!(%error, "the log was not emptied; the next opening does it");
        }
        self.state.write().refusal = Some(closed("use", &self.path));
    }

    /// Commits a group and answers its callers. Gives them back when nothing can be written any more.
    fn serve(&mut self, calls: Vec<Call>) -> Result<(), (StoreError, Vec<Call>)> {
        let (entries, outcomes) = self.decide(&calls);
        if let Err(error) = self.log.append_batch(&entries) {
            let error = from_log("commit", error);
            if self.log.is_poisoned() {
                return Err((error, calls));
            }
            for call in calls {
                // A caller that went away needs no answer.
                drop(call.answer.send(Err(error.clone())));
            }
            return Ok(());
        }
        let mut answers = Vec::with_capacity(calls.len());
        let mut state = self.state.write();
        for (call, outcomes) in calls.into_iter().zip(outcomes) {
            state.apply(&call.scope, call.ops, &outcomes);
            answers.push((call.answer, outcomes));
        }
        drop(state);
        for (answer, outcomes) in answers {
            drop(answer.send(Ok(outcomes)));
        }
        if self.log.needs_compaction() && self.log.log_bytes() >= self.snapshot_bytes {
            self.fold().map_err(|error| (error, Vec::new()))?;
        }
        Ok(())
    }

    /// What becomes of each write, and the entries of those calls of which anything applies.
    fn decide(&mut self, calls: &[Call]) -> (Vec<Vec<u8>>, Vec<Vec<Outcome>>) {
        let state = self.state.read();
        // What the group itself changes before it is there for all to see.
        let mut changed: HashMap<(&str, &Bytes), Option<Version>> = HashMap::new();
        let mut entries = Vec::with_capacity(calls.len());
        let mut outcomes = Vec::with_capacity(calls.len());
        for call in calls {
            let table = state.table(&call.scope);
            let mut entry = None;
            let mut decide = |op| {
                let place = (&*call.scope, Op::key(op));
                let stored = || table.and_then(|table| table.version(op.key()));
                let found = changed.get(&place).copied().unwrap_or_else(stored);
                if !op.fits(found) {
                    return Outcome::Conflict(found);
                }
                let entry = entry.get_or_insert_with(|| Writing::of(&call.scope));
                match op {
                    Op::Put { key, value, index, .. } => {
                        self.last_version += 1;
                        let version = Version(self.last_version);
                        entry.put(key, version, *index, value);
                        changed.insert(place, Some(version));
                        Outcome::Applied(version)
                    }
                    Op::Delete { key, expect } => {
                        entry.remove(key);
                        changed.insert(place, None);
                        Outcome::Applied(*expect)
                    }
                }
            };
            outcomes.push(call.ops.iter().map(&mut decide).collect());
            entries.extend(entry.map(Writing::finish));
        }
        (entries, outcomes)
    }

    /// Writes all that is there as the new snapshot, unless it holds it already. Readers go on meanwhile. Fails only
    /// when nothing can be written any more.
    fn fold(&mut self) -> Result<(), StoreError> {
        if self.log.log_entries() == 0 {
            return Ok(());
        }
        let state = self.state.read();
        let mut bytes = 0;
        let done = self.log.compact_with(|snapshot| {
            state.records().try_for_each(|record| {
                bytes += record.len() as u64;
                snapshot.record(&record)
            })
        });
        match done.map_err(|error| from_log("compact", error)) {
            Ok(()) => self.snapshot_bytes = bytes,
            Err(error) if self.log.is_poisoned() => return Err(error),
            Err(error) => {
                let error = crate::describe(&error);
                tracing::warn!(error, "the log was not folded into a snapshot; nothing is lost");
            }
        }
        Ok(())
    }

    /// Closes for good after a write that failed half-way, so that the files can be opened again.
    fn give_up(
        self,
        failure: &StoreError,
        calls: Vec<Call>,
        next: Option<Message>,
        mut messages: mpsc::Receiver<Message>,
    ) {
        let Self { log, state, path, .. } = self;
        drop(log);
        let refusal = poisoned(&path, failure);
        tracing::error!(%refusal, "the journals are closed");
        state.write().refusal = Some(refusal.clone());
        messages.close();
        for call in calls {
            drop(call.answer.send(Err(failure.clone())));
        }
        let rest = next.into_iter().chain(std::iter::from_fn(|| messages.try_recv().ok()));
        for message in rest {
            if let Message::Commit(call) = message {
                drop(call.answer.send(Err(refusal.clone())));
            }
        }
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
