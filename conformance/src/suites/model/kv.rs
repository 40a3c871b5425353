//! A key-value store beside [`MemoryKv`]. Versions differ between the two and are compared through the writes that made
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use botmesh_core::Bytes;
use botmesh_core::kv::{Cursor, DurableKv, Entry, Expect, Index, Op, Outcome, Range, Version};
use botmesh_core::memory::MemoryKv;
use botmesh_core::time::Timestamp;

use super::random::{History, Random};
use crate::case::{ensure, ensure_eq};
use crate::{Context, Failure};

const SCOPES: [&str; 2] = ["one", "two"];
const KEYS: [&str; 10] = ["a", "b", "c", "d", "e", "a\0", "A", "1", "01", ""];
const PLACES: [i64; 6] = [i64::MIN, -1, 0, 1, 2, i64::MAX];

/// One key in one scope.
type Name = (usize, Bytes);

struct Model {
    random: Random,
    history: History,
    reference: MemoryKv,
    /// The writes that were applied, in order: which key, and the version on the backend and in the reference.
    writes: Vec<(Name, Version, Version)>,
    /// The number of the write that made a version on the backend.
    made_by: HashMap<(Name, Version), usize>,
    /// The same in the reference.
    reference_made_by: HashMap<(Name, Version), usize>,
}

pub(super) async fn run(context: &mut Context, steps: usize, reopen: bool) -> Result<(), Failure> {
    let mut model = Model {
        random: Random::new(context.entropy()),
        history: History::default(),
        reference: MemoryKv::new(),
        writes: Vec::new(),
        made_by: HashMap::new(),
        reference_made_by: HashMap::new(),
    };
    for _ in 0..steps {
        if reopen && model.random.chance(5) {
            model.history.push("close and open again");
            context.reopen().await.map_err(|failure| model.history.failed(&failure))?;
        }
        let scope = model.random.below(SCOPES.len());
        let pair = Pair {
            scope,
            backend: context.kv_in(SCOPES[scope])?,
            reference: model.reference.scoped(SCOPES[scope]),
        };
        let step = match model.random.below(10) {
            0..6 => model.commit(&pair).await,
            6 => model.get(&pair).await,
            _ => model.scan(&pair).await,
        };
        step.map_err(|failure| model.history.failed(&failure))?;
    }
    Ok(())
}

/// The backend and the reference, in one scope.
struct Pair {
    scope: usize,
    backend: Arc<dyn DurableKv>,
    reference: Arc<dyn DurableKv>,
}

impl Model {
    async fn commit(&mut self, pair: &Pair) -> Result<(), Failure> {
        let count = 1 + self.random.below(6);
        let (mut ops, mut reference_ops) = (Vec::new(), Vec::new());
        let mut text = format!("{}: commit", SCOPES[pair.scope]);
        for _ in 0..count {
            let (op, reference_op, name) = self.op(pair.scope);
            text.push_str(&name);
            ops.push(op);
            reference_ops.push(reference_op);
        }
        self.history.push(text);
        let names: Vec<_> = ops.iter().map(|op| (pair.scope, op.key().clone())).collect();
        let found = pair.backend.commit(ops).await?;
        let expected = pair.reference.commit(reference_ops).await?;
        ensure_eq!(found.len(), expected.len(), "the number of outcomes");
        for (name, (found, expected)) in names.into_iter().zip(found.into_iter().zip(expected)) {
            self.same_outcome(name, found, expected)?;
        }
        Ok(())
    }

    fn same_outcome(&mut self, name: Name, found: Outcome, expected: Outcome) -> Result<(), Failure> {
        match (found, expected) {
            (Outcome::Applied(found), Outcome::Applied(expected)) => {
                if let Some(write) = self.reference_made_by.get(&(name.clone(), expected)) {
                    // A delete reports the version that it removed.
                    let removed = self.made_by.get(&(name.clone(), found));
                    ensure_eq!(removed, Some(write), "the version that a delete of {:?} removed", name.1);
                    return Ok(());
                }
                let number = self.writes.len();
                let known = self.made_by.insert((name.clone(), found), number);
                ensure!(known.is_none(), "{found:?} of {:?} was given twice", name.1);
                let earlier =
                    self.writes.iter().filter(|(other, ..)| *other == name).map(|(_, version, _)| version);
                ensure!(
                    earlier.max().is_none_or(|last| *last < found),
                    "{found:?} of {:?} is not larger",
                    name.1
                );
                self.reference_made_by.insert((name.clone(), expected), number);
                self.writes.push((name, found, expected));
                Ok(())
            }
            (Outcome::Conflict(found), Outcome::Conflict(expected)) => {
                let write = |made_by: &HashMap<_, _>, version: Option<Version>| {
                    version.map(|version| made_by.get(&(name.clone(), version)).copied())
                };
                let found = write(&self.made_by, found);
                let expected = write(&self.reference_made_by, expected);
                ensure_eq!(found, expected, "the write that a conflict of {:?} reports", name.1);
                Ok(())
            }
            (found, expected) => {
                let key = name.1;
                Err(Failure::new(format!(
                    "the outcome of {key:?} is {found:?}, in the reference {expected:?}"
                )))
            }
        }
    }

    /// A random write for the backend, the same for the reference, and for people.
    fn op(&self, scope: usize) -> (Op, Op, String) {
        let key = Bytes::from_static(self.random.pick(&KEYS).as_bytes());
        let (expect, reference_expect, expect_text) = self.expect(&(scope, key.clone()));
        if let (Expect::Version(version), Expect::Version(reference)) = (expect, reference_expect)
            && self.random.chance(30)
        {
            let text = format!(" [delete {key:?} {expect_text}]");
            let delete = |expect| Op::Delete { key: key.clone(), expect };
            return (delete(version), delete(reference), text);
        }
        let index = self.index();
        let value = Bytes::from(format!("value {}", self.random.below(1_000_000)));
        let text = format!(" [put {key:?} {expect_text} {index:?}]");
        let put = |expect| Op::Put { key: key.clone(), expect, value: value.clone(), index };
        (put(expect), put(reference_expect), text)
    }

    /// Mostly the latest write of the key, sometimes an old one, none, or one that never was.
    fn expect(&self, name: &Name) -> (Expect, Expect, String) {
        let of_key = self.writes.iter().enumerate().filter(|(_, (other, ..))| other == name);
        let of_key: Vec<_> = of_key.collect();
        let chosen = match self.random.below(10) {
            0..5 => of_key.last().copied(),
            5 | 6 if !of_key.is_empty() => Some(self.random.pick(&of_key)),
            7 => {
                let never = Expect::Version(Version(u64::MAX >> self.random.below(3)));
                return (never, never, format!("expecting {never:?}"));
            }
            _ => None,
        };
        match chosen {
            Some((number, (_, version, reference))) => {
                (Expect::Version(*version), Expect::Version(*reference), format!("expecting write {number}"))
            }
            None => (Expect::Absent, Expect::Absent, "expecting none".to_owned()),
        }
    }

    fn index(&self) -> Index {
        let place = || self.random.pick(&PLACES);
        let due = self.random.chance(50).then(|| Timestamp::from_millis(place()));
        let bucket = self.random.pick(&[0, 1, 255]);
        let list = self.random.chance(50).then(|| (bucket, place()));
        Index { due, list }
    }

    async fn get(&mut self, pair: &Pair) -> Result<(), Failure> {
        self.history.push(format!("{}: get all", SCOPES[pair.scope]));
        let keys = KEYS.map(|key| Bytes::from_static(key.as_bytes()));
        let (found, expected) = (pair.backend.get(&keys).await?, pair.reference.get(&keys).await?);
        ensure_eq!(found.len(), expected.len(), "the number of answers");
        for (key, (found, expected)) in keys.iter().zip(found.into_iter().zip(expected)) {
            let found = found.map(|entry| self.comparable(pair.scope, entry, &self.made_by));
            let expected = expected.map(|entry| self.comparable(pair.scope, entry, &self.reference_made_by));
            ensure_eq!(found, expected, "the entry {key:?}");
        }
        Ok(())
    }

    async fn scan(&mut self, pair: &Pair) -> Result<(), Failure> {
        let place = || self.random.pick(&PLACES);
        let range = if self.random.chance(50) {
            Range::Due { until: Timestamp::from_millis(place()) }
        } else {
            Range::List { bucket: self.random.pick(&[0, 1, 255]), from: place(), until: place() }
        };
        let key = Bytes::from_static(self.random.pick(&KEYS).as_bytes());
        let after = self.random.chance(50).then(|| Cursor { place: place(), key });
        let limit = self.random.pick(&[1, 2, 3, 100]);
        self.history.push(format!("{}: scan {range:?} after {after:?} limit {limit}", SCOPES[pair.scope]));
        let found = pair.backend.scan(range, after.as_ref(), limit).await?;
        let expected = pair.reference.scan(range, after.as_ref(), limit).await?;
        let found: Vec<_> =
            found.into_iter().map(|entry| self.comparable(pair.scope, entry, &self.made_by)).collect();
        let expected: Vec<_> = expected
            .into_iter()
            .map(|entry| self.comparable(pair.scope, entry, &self.reference_made_by))
            .collect();
        ensure_eq!(found, expected, "the page");
        Ok(())
    }

    /// An entry with the number of the write that made it in place of its version.
    fn comparable(
        &self,
        scope: usize,
        entry: Entry,
        made_by: &HashMap<(Name, Version), usize>,
    ) -> (Bytes, Option<usize>, Bytes, Index) {
        let write = made_by.get(&((scope, entry.key.clone()), entry.version)).copied();
        (entry.key, write, entry.value, entry.index)
    }
}
