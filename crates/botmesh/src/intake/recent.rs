use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::core::id::RecordId;

const REMEMBERED: usize = 10_000;

/// The last records that were taken over, to recognise redeliveries without an inbox.
#[derive(Default)]
pub(super) struct Recent(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    known: HashSet<RecordId>,
    order: VecDeque<RecordId>,
}

impl Recent {
    /// `false` if the record is remembered.
    pub(super) fn insert(&self, record: &RecordId) -> bool {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.known.insert(record.clone()) {
            return false;
        }
        inner.order.push_back(record.clone());
        if inner.order.len() > REMEMBERED
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.known.remove(&oldest);
        }
        true
    }
}
