use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

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
    /// Whether tickets are taken: not while a message rests before its next attempt, so that others can have the chat.
    takes: bool,
    /// Whether somebody is taking them.
    taking: bool,
}

enum Place {
    Reserved,
    Filled(Box<Work>),
    Cancelled,
}

impl Queue {
    fn lacks_tickets(&self) -> bool {
        let waiting = || self.slots.iter().filter(|(_, place)| matches!(place, Place::Filled(_))).count();
        self.takes && self.tickets.len() < waiting()
    }

    /// Takes no more tickets; those that were taken are the caller's to drop.
    fn stop_taking(&mut self) -> VecDeque<Ticket> {
        self.takes = false;
        std::mem::take(&mut self.tickets)
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
    fn settle(&self, key: &ConversationKey, id: u64, place: Place) -> Option<Option<OwnedSemaphorePermit>> {
        let mut inner = self.lock();
        let queue = inner.conversations.get_mut(key)?;
        if let Some(slot) = queue.slots.iter_mut().find(|(slot, _)| *slot == id) {
            slot.1 = place;
        }
        while let Some((_, Place::Cancelled)) = queue.slots.front() {
            queue.slots.pop_front();
        }
        if queue.served {
            return None;
        }
        match queue.slots.front() {
            Some((_, Place::Filled(_))) => {
                queue.served = true;
                Some(queue.permit.take())
            }
            Some(_) => None,
            None => {
                inner.conversations.remove(key);
                None
            }
        }
    }

    pub(super) fn contains(&self, key: &ConversationKey) -> bool {
        self.lock().conversations.contains_key(key)
    }

    /// The worker's next message, if it is there.
    pub(super) fn next(&self, key: &ConversationKey) -> Option<Work> {
        self.lock().conversations.get_mut(key)?.pop_filled()
    }

    /// The messages that wait and arrived before `order`.
    pub(super) fn take_earlier(&self, key: &ConversationKey, order: i64) -> Vec<Work> {
        let mut inner = self.lock();
        let Some(queue) = inner.conversations.get_mut(key) else { return Vec::new() };
        let mut earlier = Vec::new();
        for (_, place) in &mut queue.slots {
            if matches!(place, Place::Filled(work) if work.record.as_ref().is_some_and(|stored| stored.record.order < order))
                && let Place::Filled(work) = std::mem::replace(place, Place::Cancelled)
            {
                earlier.push(*work);
            }
        }
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

    /// The worker's next message; if there is none, the worker is dismissed.
    pub(super) fn next_or_dismiss(&self, key: &ConversationKey) -> Option<Work> {
        let mut inner = self.lock();
        let queue = inner.conversations.get_mut(key)?;
        if let Some(work) = queue.pop_filled() {
            return Some(work);
        }
        queue.served = false;
        let unused = queue.stop_taking();
        if queue.slots.is_empty() {
            inner.conversations.remove(key);
        }
        drop(inner);
        drop(unused);
        None
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
        queue.takes = true;
        queue.tickets.pop_front()
    }

    /// Gives back what was taken for messages that wait, until the next message begins.
    pub(super) fn forget_tickets(&self, key: &ConversationKey) {
        let unused = self.lock().conversations.get_mut(key).map(Queue::stop_taking);
        drop(unused);
    }

    pub(super) fn clear(&self) {
        let forgotten = std::mem::take(&mut self.lock().conversations);
        drop(forgotten);
    }
}

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

    pub(crate) fn fill(mut self, mut work: Work) {
        work.unfinished = Some(self.turns.world.metrics.begin(work.received));
        self.settle(Place::Filled(Box::new(work)));
    }

    fn settle(&mut self, place: Place) {
        self.open = false;
        if let Some(permit) = self.turns.queues.settle(&self.key, self.id, place) {
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
