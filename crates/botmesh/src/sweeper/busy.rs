use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The work in the background that is under way, by what it is about: nothing is begun twice.
#[derive(Default)]
pub(crate) struct Busy(Mutex<HashSet<String>>);

/// Work that is under way.
pub(super) struct Begun {
    busy: Arc<Busy>,
    about: String,
}

impl Busy {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().is_empty()
    }

    /// `None` if work about the same is under way.
    pub(super) fn begin(self: &Arc<Self>, about: String) -> Option<Begun> {
        let new = self.lock().insert(about.clone());
        new.then(|| Begun { busy: Arc::clone(self), about })
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.about);
    }
}
