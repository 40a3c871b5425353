use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::Micros;
use crate::coordinator::Fence;

/// The longest time for which a lock is given at once; longer ones are cut to it, so that the end can always be computed.
pub const MAX_LOCK_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// What became of a wish for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Locking {
    /// The caller holds it. Of two acquisitions, the later one has the larger fence.
    Acquired(Fence),
    /// Somebody else holds it, or nobody is granted anything after a loss of data.
    Busy {
        /// How long at most, if it is not prolonged.
        remaining: Duration,
    },
    /// No session has opened, or all data was lost since. Open one, which tells the floor of the fences, and try again.
    Unopened,
}

#[derive(Clone, Debug)]
struct Lock {
    token: Arc<str>,
    fence: Fence,
    end: Micros,
}

/// The user's own locks. Those that ran out are forgotten with the next acquisition.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks {
    locks: HashMap<Arc<str>, Lock>,
    ends: BTreeSet<(Micros, Arc<str>)>,
}

fn end(now: Micros, ttl: Duration) -> Micros {
    now.after(ttl.min(MAX_LOCK_TTL))
}

impl Locks {
    pub(super) fn acquire(
        &mut self,
        key: &str,
        token: &str,
        ttl: Duration,
        now: Micros,
        next: impl FnOnce() -> Fence,
    ) -> Locking {
        self.forget_ended(now);
        if let Some(fence) = self.renew(key, token, ttl, now) {
            return Locking::Acquired(fence);
        }
        if let Some(lock) = self.locks.get(key) {
            return Locking::Busy { remaining: now.until(lock.end) };
        }
        let (key, fence, end) = (Arc::<str>::from(key), next(), end(now, ttl));
        self.ends.insert((end, Arc::clone(&key)));
        self.locks.insert(key, Lock { token: Arc::from(token), fence, end });
        Locking::Acquired(fence)
    }

    pub(super) fn renew(&mut self, key: &str, token: &str, ttl: Duration, now: Micros) -> Option<Fence> {
        let name = self.held(key, token, now)?;
        let lock = self.locks.get_mut(key)?;
        self.ends.remove(&(lock.end, Arc::clone(&name)));
        lock.end = end(now, ttl);
        self.ends.insert((lock.end, name));
        Some(lock.fence)
    }

    pub(super) fn release(&mut self, key: &str, token: &str, now: Micros) -> bool {
        let Some(name) = self.held(key, token, now) else { return false };
        if let Some(lock) = self.locks.remove(key) {
            self.ends.remove(&(lock.end, name));
        }
        true
    }

    pub(super) fn snapshot(&self) -> Vec<(Arc<str>, Arc<str>, Fence, Micros)> {
        let locks = self.locks.iter();
        let mut locks: Vec<_> = locks
            .map(|(key, lock)| (Arc::clone(key), Arc::clone(&lock.token), lock.fence, lock.end))
            .collect();
        locks.sort_unstable();
        locks
    }

    /// The shared text of a key, if `token` holds its lock.
    fn held(&self, key: &str, token: &str, now: Micros) -> Option<Arc<str>> {
        let (name, lock) = self.locks.get_key_value(key)?;
        (*lock.token == *token && now < lock.end).then(|| Arc::clone(name))
    }

    fn forget_ended(&mut self, now: Micros) {
        while let Some((_, key)) = self.ends.first().filter(|(end, _)| *end <= now).cloned() {
            self.ends.pop_first();
            self.locks.remove(&key);
        }
    }
}
