use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{Turns, Work};
use crate::core::coordinator::Ticket;
use crate::core::id::ConversationKey;
use crate::lanes::Lanes;

/// The conversations that have something to do. The others cost nothing.
#[derive(Default)]
pub(super) struct Queues {
    inner: Mutex<Inner>,
    /// Who takes a ticket for a conversation.
    pub(super) lanes: Lanes<ConversationKey>,
}

#[derive(Default)]
struct Inner {
    conversations: HashMap<ConversationKey, Queue>,
    next_slot: u64,
}

#[derive(Default)]
struct Queue {
    slots: VecDeque<(u64, Place)>,
    /// Whether a worker serves the queue.
    served: bool,
    /// The permit to run at once, taken when the first place was reserved.
    permit: Option<OwnedSemaphorePermit>,
    /// For messages that wait, in the order in which they were taken. Any of them is as good for any message.
    tickets: VecDeque<Ticket>,
    takes: Takes,
    /// Whether somebody is taking them.
    taking: bool,
}

/// Whether tickets are taken for messages that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Takes {
    Now,
    /// As soon as the next message begins.
    #[default]
    Later,
    /// Not until the next message begins, and what comes before goes without: others can have the chat.
    No,
}

enum Place {
    Reserved,
    Filled(Box<Work>),
    Cancelled,
}

impl Queue {
    fn waiting(&mut self) -> impl Iterator<Item = &mut Work> {
        self.slots.iter_mut().filter_map(|(_, place)| match place {
            Place::Filled(work) => Some(&mut **work),
            Place::Reserved | Place::Cancelled => None,
        })
    }

    fn lacks_tickets(&mut self) -> bool {
        self.takes == Takes::Now && self.tickets.len() < self.waiting().count()
    }

    fn take(&mut self, takes: Takes) {
        self.takes = takes;
        if takes == Takes::No {
            self.waiting().for_each(Work::place);
        }
    }

    /// Takes no more tickets; those that were taken are the caller's.
    fn stop_taking(&mut self, takes: Takes) -> VecDeque<Ticket> {
        self.take(takes);
        std::mem::take(&mut self.tickets)
    }

    /// A worker begins to serve it: at once if there is a permit, and then tickets are taken for what waits.
    fn serve(&mut self, running: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let permit = self.permit.take().or_else(|| Arc::clone(running).try_acquire_owned().ok());
        self.served = true;
        self.take(if permit.is_some() { Takes::Now } else { Takes::No });
        permit
    }

    fn pop_filled(&mut self) -> Option<Work> {
        while let Some((_, Place::Cancelled)) = self.slots.front() {
            self.slots.pop_front();
        }
        if !matches!(self.slots.front(), Some((_, Place::Filled(_)))) {
            return None;
        }
        match self.slots.pop_front() {
            Some((_, Place::Filled(work))) => Some(*work),
            _ => None,
        }
    }
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reserve(turns: &Arc<Turns>, key: ConversationKey) -> Slot {
        let mut inner = turns.queues.lock();
        let id = inner.next_slot;
        inner.next_slot += 1;
        let queue = inner.conversations.entry(key.clone()).or_default();
        let idle = queue.slots.is_empty() && !queue.served;
        if idle {
            queue.permit = Arc::clone(&turns.running).try_acquire_owned().ok();
        }
        let starts = idle && queue.permit.is_some();
        queue.slots.push_back((id, Place::Reserved));
        Slot { turns: Arc::clone(turns), key, id, starts, open: true }
    }

    /// Settles a reserved place. Returns the permit for a worker if one must be started.
    fn settle(
        &self,
        key: &ConversationKey,
        id: u64,
        mut place: Place,
        running: &Arc<Semaphore>,
    ) -> Option<Option<OwnedSemaphorePermit>> {
        let mut inner = self.lock();
        let queue = inner.conversations.get_mut(key)?;
        if let Place::Filled(work) = &mut place
            && queue.takes == Takes::No
        {
            work.place();
        }
        // What was reserved last is mostly among the last, and long queues are full of what waits.
        if let Some(slot) = queue.slots.iter_mut().rfind(|(slot, _)| *slot == id) {
            slot.1 = place;
        }
        while let Some((_, Place::Cancelled)) = queue.slots.front() {
            queue.slots.pop_front();
        }
        let starts = !queue.served && matches!(queue.slots.front(), Some((_, Place::Filled(_))));
        let permit = starts.then(|| queue.serve(running));
        if !queue.served && queue.slots.is_empty() {
            inner.conversations.remove(key);
        }
        permit
    }

    pub(super) fn contains(&self, key: &ConversationKey) -> bool {
        self.lock().conversations.contains_key(key)
    }

    /// The worker's next message, if it is there.
    pub(super) fn next(&self, key: &ConversationKey) -> Option<Work> {
        self.lock().conversations.get_mut(key)?.pop_filled()
    }

    /// The messages of this process that wait and arrived before `order`.
    pub(super) fn take_earlier(&self, key: &ConversationKey, order: i64) -> Vec<Work> {
        let mut inner = self.lock();
        let Some(queue) = inner.conversations.get_mut(key) else { return Vec::new() };
        let (mut earlier, mut unused, mut waits) = (Vec::new(), Vec::new(), 0);
        for (_, place) in &mut queue.slots {
            let Place::Filled(work) = place else { continue };
            if work.record.as_ref().is_none_or(|stored| stored.record.order >= order) {
                waits += 1;
            } else if let Place::Filled(mut work) = std::mem::replace(place, Place::Cancelled) {
                work.place();
                earlier.push(*work);
                // With it, what arrives later would have a place before what other replicas took over meanwhile.
                unused.extend(queue.tickets.remove(waits));
            }
        }
        drop(inner);
        drop(unused);
        earlier
    }

    /// Puts a message before all that wait.
    pub(super) fn put_first(&self, key: &ConversationKey, work: Work) {
        let mut inner = self.lock();
        let id = inner.next_slot;
        inner.next_slot += 1;
        if let Some(queue) = inner.conversations.get_mut(key) {
            queue.slots.push_front((id, Place::Filled(Box::new(work))));
        }
    }

    /// The worker's next message; if there is none, the worker is dismissed, with the tickets that were not used.
    pub(super) fn next_or_dismiss(&self, key: &ConversationKey) -> Result<Work, VecDeque<Ticket>> {
        let mut inner = self.lock();
        let Some(queue) = inner.conversations.get_mut(key) else { return Err(VecDeque::new()) };
        if let Some(work) = queue.pop_filled() {
            return Ok(work);
        }
        queue.served = false;
        let unused = queue.stop_taking(Takes::Later);
        if queue.slots.is_empty() {
            inner.conversations.remove(key);
        }
        Err(unused)
    }

    /// Whether something waits that has no ticket and gets none, or the next message if there is one.
    pub(super) fn has_unplaced(&self, key: &ConversationKey, next: bool) -> bool {
        let mut inner = self.lock();
        let Some(queue) = inner.conversations.get_mut(key) else { return false };
        !queue.taking && queue.tickets.len() < queue.waiting().count() + usize::from(next)
    }

    /// Whether the caller is to take tickets for the messages that wait.
    pub(super) fn begin_taking(&self, key: &ConversationKey) -> bool {
        let mut inner = self.lock();
        let Some(queue) = inner.conversations.get_mut(key) else { return false };
        let begins = !queue.taking && queue.lacks_tickets();
        queue.taking |= begins;
        begins
    }

    /// Keeps a ticket that was taken; `None` if none can be. Whether another one is to be taken.
    pub(super) fn add_ticket(&self, key: &ConversationKey, ticket: Option<Ticket>) -> bool {
        let mut inner = self.lock();
        let Some(queue) = inner.conversations.get_mut(key) else {
            drop(inner);
            return false;
        };
        let went_well = ticket.is_some();
        let unused = match ticket {
            Some(ticket) if queue.lacks_tickets() => {
                queue.tickets.push_back(ticket);
                if let Some(first) = queue.waiting().find(|work| work.placed.is_some()) {
                    first.place();
                }
                None
            }
            None => {
                queue.waiting().for_each(|work| work.placed = None);
                None
            }
            other => other,
        };
        queue.taking = went_well && queue.lacks_tickets();
        let more = queue.taking;
        drop(inner);
        drop(unused);
        more
    }

    /// The first ticket that was taken. From now on tickets are taken for what waits.
    pub(super) fn next_ticket(&self, key: &ConversationKey) -> Option<Ticket> {
        let mut inner = self.lock();
        let queue = inner.conversations.get_mut(key)?;
        queue.takes = Takes::Now;
        queue.tickets.pop_front()
    }

    /// What was taken for messages that wait. No more is taken until the next message begins.
    pub(super) fn take_back(&self, key: &ConversationKey, takes: Takes) -> VecDeque<Ticket> {
        let mut inner = self.lock();
        inner.conversations.get_mut(key).map(|queue| queue.stop_taking(takes)).unwrap_or_default()
    }

    /// Forgets everything but the tickets.
    pub(super) fn clear(&self) -> Vec<VecDeque<Ticket>> {
        let forgotten = std::mem::take(&mut self.lock().conversations);
        forgotten.into_values().map(|queue| queue.tickets).collect()
    }
}

pub(crate) type Placed = oneshot::Receiver<()>;

/// A place in a conversation's queue. Dropping it gives it up.
pub(crate) struct Slot {
    turns: Arc<Turns>,
    key: ConversationKey,
    id: u64,
    starts: bool,
    open: bool,
}

impl Slot {
    /// Whether the message will run as soon as the place is filled.
    pub(crate) fn starts_at_once(&self) -> bool {
        self.starts
    }

    /// Takes no place to run until it is filled, which may take long.
    pub(crate) fn stand_back(&self) {
        if self.starts
            && let Some(queue) = self.turns.queues.lock().conversations.get_mut(&self.key)
        {
            queue.permit = None;
        }
    }

    /// Among replicas, what resolves when the message has its place in the order of the chat, or goes without one; with an error
    /// if it has none.
    pub(crate) fn fill(mut self, mut work: Work) -> Option<Placed> {
        work.unfinished = Some(self.turns.world.metrics.begin(work.received));
        let placed = self.turns.world.coordinated.then(|| {
            let (places, placed) = oneshot::channel();
            work.placed = Some(places);
            placed
        });
        self.settle(Place::Filled(Box::new(work)));
        placed
    }

    fn settle(&mut self, place: Place) {
        self.open = false;
        if let Some(permit) = self.turns.queues.settle(&self.key, self.id, place, &self.turns.running) {
            self.turns.start_worker(self.key.clone(), permit);
        } else {
            self.turns.take_tickets(&self.key);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.open {
            self.settle(Place::Cancelled);
        }
    }
}
