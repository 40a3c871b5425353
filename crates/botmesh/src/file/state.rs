use std::collections::HashMap;
use std::sync::Arc;

use super::entry::{self, Change, Unreadable, Writing};
use crate::core::error::StoreError;
use crate::core::kv::{Entry, Op, Outcome, Version};
use crate::core::memory::Table;

/// What the files hold, in memory. Only the thread that writes changes it, and only after the disk has it.
#[derive(Debug, Default)]
pub(super) struct State {
    tables: HashMap<Arc<str>, Table>,
    /// The largest version ever given, also to entries that are gone.
    pub(super) last_version: u64,
    /// Why nothing is read or written any more.
    pub(super) refusal: Option<StoreError>,
}

impl State {
    pub(super) fn table(&self, scope: &str) -> Option<&Table> {
        self.tables.get(scope)
    }

    fn table_mut(&mut self, scope: impl Into<Arc<str>>) -> &mut Table {
        self.tables.entry(scope.into()).or_default()
    }

    /// Does what an entry of the log or a record of the snapshot says.
    pub(super) fn replay(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        let (scope, changes) = entry::read(bytes)?;
        let last = changes.iter().map(|change| match change {
            Change::Put(Entry { version, .. }) | Change::LastVersion(version) => version.0,
            Change::Remove(_) => 0,
        });
        self.last_version = last.fold(self.last_version, u64::max);
        let table = self.table_mut(scope);
        for change in changes {
            match change {
                Change::Put(entry) => table.put(entry),
                Change::Remove(key) => table.remove(&key),
                Change::LastVersion(_) => {}
            }
        }
        Ok(())
    }

    /// Does what was committed: those of `ops` whose outcome says so.
    pub(super) fn apply(&mut self, scope: &Arc<str>, ops: Vec<Op>, outcomes: &[Outcome]) {
        let last = outcomes.iter().map(|outcome| match outcome {
            Outcome::Applied(version) => version.0,
            Outcome::Conflict(_) => 0,
        });
        self.last_version = last.fold(self.last_version, u64::max);
        let table = self.table_mut(Arc::clone(scope));
        for (op, outcome) in ops.into_iter().zip(outcomes) {
            let Outcome::Applied(version) = *outcome else { continue };
            match op {
                Op::Put { key, value, index, .. } => table.put(Entry { key, version, value, index }),
                Op::Delete { key, .. } => table.remove(&key),
            }
        }
    }

    /// The records of a snapshot.
    pub(super) fn records(&self) -> impl Iterator<Item = Vec<u8>> {
        let mut first = Writing::of("");
        first.last_version(Version(self.last_version));
        let entries =
            self.tables.iter().flat_map(|(scope, table)| table.iter().map(move |entry| (scope, entry)));
        let records = entries.map(|(scope, Entry { key, version, value, index })| {
            let mut writing = Writing::of(scope);
            writing.put(&key, version, index, &value);
            writing.finish()
        });
        std::iter::once(first.finish()).chain(records)
    }
}
