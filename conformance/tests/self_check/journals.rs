use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use botmesh_conformance::{Backend, Claims, OpenError, Opened, Place};
use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::journal::{OutboxRecord, Record, WritePoint};
use botmesh_core::kv::{
    Caps, Cursor, Durable, DurableKv, Entry, Expect, MAX_KEY, Op, Outcome, Range, Version,
};
use botmesh_core::{Bytes, async_trait};

use crate::failures;

const MAX_VALUE: usize = 1 << 20;

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    VersionsRestart,
    StaleVersionsWrite,
    AbsentOverwrites,
    ConflictsReportNothing,
    OutcomesReversed,
    ConflictEndsBatch,
    BatchSeesNoneOfItself,
    LargeValuesCutTheBatch,
    LongKeysAreCut,
    EqualPlacesSkipped,
    CursorsRepeat,
    ListsUnordered,
    DueBeforeItsTime,
    BoundsExcluded,
    BucketsMixed,
    PlacesAreDoubles,
    OldPlacesStay,
    DeletesLeavePlaces,
    KeysAreText,
    KeysFoldCase,
    KeysAreNumbers,
    ValuesAreText,
    MissingKeysAreLeftOut,
    ScopesFoldCase,
    ScopesScanTogether,
    UpdatesAreLost,
    NothingSurvives,
    CapabilitiesLie,
    /// That a send arrived is acknowledged and forgotten.
    SentIsForgotten,
    /// The first write of a send is applied once more, after the next commit.
    SendsApplyTwice,
}

/// A small key-value store that breaks one rule.
#[derive(Clone)]
struct Toy {
    bug: Bug,
    scope: String,
    data: Arc<Mutex<Data>>,
}

#[derive(Default)]
struct Data {
    version: u64,
    late: Vec<Op>,
    entries: BTreeMap<(String, Bytes), Entry>,
    ghosts: Vec<(String, Entry)>,
}

impl Toy {
    fn new(bug: Bug) -> Self {
        Self { bug, scope: String::new(), data: Arc::default() }
    }

    fn name(&self, key: &Bytes) -> (String, Bytes) {
        let text = || String::from_utf8_lossy(key).into_owned();
        let key = match self.bug {
            Bug::KeysAreText => text().into(),
            Bug::KeysFoldCase => text().to_lowercase().into(),
            Bug::KeysAreNumbers => {
                text().parse::<f64>().map_or(key.clone(), |number| number.to_string().into())
            }
            Bug::LongKeysAreCut => key.slice(..key.len().min(MAX_KEY - 1)),
            _ => key.clone(),
        };
        (self.scope.clone(), key)
    }

    fn is_too_large(op: &Op) -> bool {
        op.key().len() > MAX_KEY || matches!(op, Op::Put { value, .. } if value.len() > MAX_VALUE)
    }

    fn expected(&self, data: &Data, op: &Op) -> Result<(), Outcome> {
        let current = data.entries.get(&self.name(op.key())).map(|entry| entry.version);
        let expected = match op {
            Op::Put { expect: Expect::Absent, .. } => None,
            Op::Put { expect: Expect::Version(version), .. } | Op::Delete { expect: version, .. } => {
                Some(*version)
            }
        };
        let lenient = match self.bug {
            Bug::StaleVersionsWrite => expected.is_some() && current.is_some(),
            Bug::AbsentOverwrites => expected.is_none(),
            _ => false,
        };
        let reported = current.filter(|_| self.bug != Bug::ConflictsReportNothing);
        if current == expected || lenient { Ok(()) } else { Err(Outcome::Conflict(reported)) }
    }

    fn apply(&self, data: &mut Data, op: Op) -> Outcome {
        let name = self.name(op.key());
        let old = data.entries.get(&name).cloned();
        match op {
            Op::Put { key, value, index, .. } => {
                let last = if self.bug == Bug::VersionsRestart {
                    old.as_ref().map_or(0, |old| old.version.0)
                } else {
                    data.version
                };
                data.version += 1;
                let version = Version(last + 1);
                let text = String::from_utf8_lossy(&value).into_owned();
                let value = if self.bug == Bug::ValuesAreText { text.into() } else { value };
                if let Some(old) = old.filter(|old| self.bug == Bug::OldPlacesStay && old.index != index) {
                    data.ghosts.push((self.scope.clone(), old));
                }
                data.entries.insert(name, Entry { key, version, value, index });
                Outcome::Applied(version)
            }
            Op::Delete { expect, .. } => {
                if let Some(old) = data.entries.remove(&name).filter(|_| self.bug == Bug::DeletesLeavePlaces)
                {
                    data.ghosts.push((self.scope.clone(), old));
                }
                Outcome::Applied(expect)
            }
        }
    }

    fn commit_all(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        let mut data = self.data.lock().unwrap();
        if self.bug != Bug::LargeValuesCutTheBatch && ops.iter().any(Self::is_too_large) {
            return Err(too_large());
        }
        let before: Vec<_> = ops.iter().map(|op| self.expected(&data, op)).collect();
        let is_new_send = |op: &&Op| {
            let is_new = matches!(op, Op::Put { expect: Expect::Absent, .. });
            self.bug == Bug::SendsApplyTwice && is_new && op.key().first() == Some(&OutboxRecord::PREFIX)
        };
        let sends: Vec<_> = ops.iter().filter(is_new_send).cloned().collect();
        let mut outcomes: Vec<Outcome> = Vec::new();
        for (op, before) in ops.into_iter().zip(before) {
            if Self::is_too_large(&op) {
                return Err(too_large());
            }
            let ended = self.bug == Bug::ConflictEndsBatch
                && outcomes.iter().any(|outcome| matches!(outcome, Outcome::Conflict(_)));
            let expected = match self.bug {
                Bug::BatchSeesNoneOfItself => before,
                _ if ended => Err(Outcome::Conflict(None)),
                _ => self.expected(&data, &op),
            };
            if self.bug == Bug::SentIsForgotten && expected.is_ok() && says_sent(&op) {
                data.version += 1;
                outcomes.push(Outcome::Applied(Version(data.version)));
                continue;
            }
            outcomes.push(expected.map_or_else(|conflict| conflict, |()| self.apply(&mut data, op)));
        }
        for op in std::mem::replace(&mut data.late, sends) {
            let _ = self.apply(&mut data, op);
        }
        if self.bug == Bug::OutcomesReversed {
            outcomes.reverse();
        }
        Ok(outcomes)
    }

    fn place(&self, range: Range, entry: &Entry) -> Option<i64> {
        let place = match range {
            Range::Due { until } => {
                let due = entry.index.due?.as_millis();
                let until = match self.bug {
                    Bug::DueBeforeItsTime => until.as_millis().saturating_add(1),
                    Bug::BoundsExcluded => until.as_millis().saturating_sub(1),
                    _ => until.as_millis(),
                };
                (due <= until).then_some(due)?
            }
            Range::List { bucket, from, until } => {
                let (own, place) = entry.index.list?;
                let until = if self.bug == Bug::BoundsExcluded { until.saturating_sub(1) } else { until };
                let mixed = self.bug == Bug::BucketsMixed;
                ((mixed || own == bucket) && from <= place && place <= until).then_some(place)?
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "the bug that is tested")]
        Some(if self.bug == Bug::PlacesAreDoubles { place as f64 as i64 } else { place })
    }
}

fn says_sent(op: &Op) -> bool {
    WritePoint::of(op) == Some(WritePoint::OutboxSent)
}

fn too_large() -> StoreError {
    StoreError::new(StoreErrorKind::TooLarge, "toy", "commit", "too large")
}

#[async_trait]
impl DurableKv for Toy {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        let scope = if self.bug == Bug::ScopesFoldCase { scope.to_lowercase() } else { scope.to_owned() };
        Arc::new(Self { scope, ..self.clone() })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        if self.bug == Bug::UpdatesAreLost {
            let checked: Vec<_> = {
                let data = self.data.lock().unwrap();
                ops.iter().map(|op| self.expected(&data, op)).collect()
            };
            tokio::task::yield_now().await;
            let mut data = self.data.lock().unwrap();
            let apply = |(op, checked): (Op, Result<(), Outcome>)| {
                checked.map_or_else(|conflict| conflict, |()| self.apply(&mut data, op))
            };
            return Ok(ops.into_iter().zip(checked).map(apply).collect());
        }
        self.commit_all(ops)
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        let data = self.data.lock().unwrap();
        let found = keys.iter().map(|key| data.entries.get(&self.name(key)).cloned());
        Ok(found.filter(|entry| self.bug != Bug::MissingKeysAreLeftOut || entry.is_some()).collect())
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let data = self.data.lock().unwrap();
        let live = data.entries.iter().map(|((scope, _), entry)| (scope, entry));
        let all = live.chain(data.ghosts.iter().map(|(scope, entry)| (scope, entry)));
        let own = all.filter(|(scope, _)| self.bug == Bug::ScopesScanTogether || **scope == self.scope);
        let mut found: Vec<(i64, Entry)> =
            own.filter_map(|(_, entry)| Some((self.place(range, entry)?, entry.clone()))).collect();
        if self.bug != Bug::ListsUnordered {
            found.sort_by(|one, other| (one.0, &one.1.key).cmp(&(other.0, &other.1.key)));
        }
        if let Some(after) = after {
            found.retain(|(place, entry)| match self.bug {
                Bug::EqualPlacesSkipped => *place > after.place,
                Bug::CursorsRepeat => (*place, &entry.key) >= (after.place, &after.key),
                _ => (*place, &entry.key) > (after.place, &after.key),
            });
        }
        Ok(found.into_iter().take(limit).map(|(_, entry)| entry).collect())
    }

    fn caps(&self) -> Caps {
        let shared = self.bug == Bug::CapabilitiesLie;
        Caps { durable: Durable::ProcessCrash, shared, max_value: MAX_VALUE, groups_commits: true }
    }
}

/// Toys outlive their closing by the place where they lie; a second opening is refused.
pub(crate) struct Toys {
    bug: Bug,
    places: Mutex<HashMap<String, Toy>>,
}

#[async_trait]
impl Backend for Toys {
    fn name(&self) -> &str {
        "toy"
    }

    fn claims(&self) -> Claims {
        Claims::NONE.surviving(Durable::ProcessCrash)
    }

    async fn open(&self, place: &Place) -> Result<Opened, OpenError> {
        let mut places = self.places.lock().unwrap();
        let known = places.entry(place.id().to_owned()).or_insert_with(|| Toy::new(self.bug));
        if Arc::strong_count(&known.data) > 1 {
            return Err("it is open".into());
        }
        let toy = if self.bug == Bug::NothingSurvives { Toy::new(self.bug) } else { known.clone() };
        Ok(Opened::kv(Arc::new(toy)))
    }
}

pub(crate) fn toys(bug: Bug) -> Toys {
    Toys { bug, places: Mutex::default() }
}

#[tokio::test]
async fn a_toy_without_a_bug_passes() {
    for suite in ["kv", "model"] {
        assert_eq!(failures(toys(Bug::None), suite).await, [""; 0], "{suite}");
    }
}

#[tokio::test]
async fn every_broken_rule_is_caught_by_its_case() {
    let broken: &[(Bug, &[&str])] = &[
        (
            Bug::VersionsRestart,
            &["versions_never_restart_after_a_delete", "versions_never_restart_after_a_reopen"],
        ),
        (Bug::StaleVersionsWrite, &["the_current_version_is_expected", "concurrent_increments_lose_nothing"]),
        (Bug::AbsentOverwrites, &["absent_means_no_entry", "concurrent_creations_have_one_winner"]),
        (Bug::ConflictsReportNothing, &["a_conflict_reports_the_current_version"]),
        (Bug::OutcomesReversed, &["outcomes_are_in_the_order_of_the_writes"]),
        (Bug::ConflictEndsBatch, &["one_conflict_leaves_the_others_applied"]),
        (Bug::BatchSeesNoneOfItself, &["writes_of_one_key_apply_in_order"]),
        (Bug::LargeValuesCutTheBatch, &["a_value_too_large_is_refused", "a_key_too_long_is_refused"]),
        (Bug::LongKeysAreCut, &["the_longest_key_is_taken"]),
        (Bug::EqualPlacesSkipped, &["equal_places_page_completely"]),
        (Bug::CursorsRepeat, &["pages_go_on_where_the_last_one_ended"]),
        (Bug::ListsUnordered, &["due_is_ordered_by_time_and_key", "a_list_is_ordered_by_place_and_key"]),
        (Bug::DueBeforeItsTime, &["due_includes_its_last_time"]),
        (Bug::BoundsExcluded, &["due_includes_its_last_time", "a_list_includes_both_bounds"]),
        (Bug::BucketsMixed, &["buckets_are_separate"]),
        (Bug::PlacesAreDoubles, &["extreme_places_are_ordered"]),
        (Bug::OldPlacesStay, &["an_entry_leaves_an_index_when_put_without", "an_entry_moves_with_its_place"]),
        (
            Bug::DeletesLeavePlaces,
            &["a_deleted_entry_is_gone_everywhere", "acknowledged_deletes_survive_a_reopen"],
        ),
        (Bug::KeysAreText, &["keys_are_byte_exact"]),
        (Bug::KeysFoldCase, &["keys_are_byte_exact"]),
        (Bug::KeysAreNumbers, &["keys_are_byte_exact"]),
        (Bug::ValuesAreText, &["values_are_byte_exact"]),
        (Bug::MissingKeysAreLeftOut, &["get_answers_in_the_order_of_the_keys"]),
        (Bug::ScopesFoldCase, &["scopes_see_only_their_own"]),
        (Bug::ScopesScanTogether, &["scopes_see_only_their_own"]),
        (Bug::UpdatesAreLost, &["concurrent_increments_lose_nothing"]),
        (Bug::NothingSurvives, &["acknowledged_writes_survive_a_reopen"]),
        (Bug::CapabilitiesLie, &["the_capabilities_are_those_claimed"]),
    ];
    for (bug, expected) in broken {
        let failed = failures(toys(*bug), "kv").await;
        for case in *expected {
            assert!(failed.contains(case), "{bug:?} is not caught by {case}, only by {failed:?}");
        }
    }
}

#[tokio::test]
async fn random_operations_find_broken_rules_too() {
    let found = [
        Bug::VersionsRestart,
        Bug::StaleVersionsWrite,
        Bug::AbsentOverwrites,
        Bug::BatchSeesNoneOfItself,
        Bug::EqualPlacesSkipped,
        Bug::BoundsExcluded,
        Bug::OldPlacesStay,
        Bug::DeletesLeavePlaces,
        Bug::KeysFoldCase,
        Bug::ScopesScanTogether,
    ];
    for bug in found {
        let failed = failures(toys(bug), "model").await;
        assert!(failed.contains(&"kv_follows_the_reference"), "{bug:?} is not found");
    }
    let failed = failures(toys(Bug::NothingSurvives), "model").await;
    assert_eq!(failed, ["kv_follows_the_reference_through_reopens"]);
}
