use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::core::journal::Unreadable;
use crate::events::EventBus;

/// How many records are told of.
const MAX_TOLD: usize = 1000;

/// The records that cannot be read and were told of: sweeps find them again and again.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<HashSet<String>>);

impl Told {
    pub(super) fn tell(&self, unreadable: &[Unreadable], events: &EventBus) {
        for Unreadable { key, reason } in unreadable {
            let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() < MAX_TOLD && told.insert(key.clone()) {
                events.failure("reading a record, which is left as it is", reason.clone());
            }
        }
    }
}
