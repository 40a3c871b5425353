use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::{Effect, Limits, Micros, Previous, QueueSnapshot, TicketId};
use crate::coordinator::Fence;

/// An idle queue keeps room for this many tickets, so that a chat's next turn allocates nothing.
const KEPT_CAPACITY: usize = 4;

/// One ticket in a queue.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) ticket: TicketId,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    /// By number, because numbers only grow.
    tickets: VecDeque<Place>,
    previous: Option<Previous>,
    /// Its place among the idle ones.
    idle: Option<u64>,
}

/// The queues by key. Those without a ticket are remembered for their previous holder, up to a limit and for a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    queues: HashMap<Arc<str>, Queue>,
    idle: BTreeMap<u64, (Arc<str>, Micros)>,
    last_idle: u64,
}

type Idle = Vec<(Arc<str>, Option<Previous>)>;

impl Keys {
    /// The shared text of a key that is remembered.
    pub(super) fn name(&self, key: &str) -> Option<Arc<str>> {
        self.queues.get_key_value(key).map(|(name, _)| Arc::clone(name))
    }

    pub(super) fn head(&self, key: &str) -> Option<&Place> {
        self.queues.get(key)?.tickets.front()
    }

    /// The tickets of a queue, in their order.
    pub(super) fn places(&self, key: &str) -> impl Iterator<Item = &Place> {
        self.queues.get(key).into_iter().flat_map(|queue| &queue.tickets)
    }

    /// How many tickets are in a queue.
    pub(super) fn tickets(&self, key: &str) -> usize {
        self.queues.get(key).map_or(0, |queue| queue.tickets.len())
    }

    pub(super) fn previous(&self, key: &str) -> Option<Previous> {
        self.queues.get(key)?.previous.clone()
    }

    /// The queue of a key that gets a ticket.
    pub(super) fn busy(&mut self, key: &str) -> (Arc<str>, &mut VecDeque<Place>) {
        let name = self.name(key).unwrap_or_else(|| Arc::from(key));
        let queue = self.queues.entry(Arc::clone(&name)).or_default();
        if let Some(place) = queue.idle.take() {
            self.idle.remove(&place);
        }
        (name, &mut queue.tickets)
    }

    /// Removes a ticket. Whether it was the head; then its session becomes the previous holder, which gave the key back or not,
    /// if it may have held the key (`held` is not `None`).
    pub(super) fn remove(&mut self, key: &str, number: u64, held: Option<bool>) -> bool {
        let Some(queue) = self.queues.get_mut(key) else { return false };
        let Ok(at) = queue.tickets.binary_search_by_key(&number, |place| place.number) else { return false };
        let removed = queue.tickets.remove(at);
        let was_head = at == 0;
        if was_head && let Some(given_back) = held {
            queue.previous = removed.map(|place| Previous { session: place.ticket.session, given_back });
        }
        was_head
    }

    /// Puts a key without tickets among the idle ones; if they are too many, forgets those that were idle longest.
    pub(super) fn rest(&mut self, key: &str, now: Micros, limits: &Limits) {
        let Some((name, _)) = self.queues.get_key_value(key) else { return };
        let name = Arc::clone(name);
        let Some(queue) = self.queues.get_mut(key) else { return };
        if queue.idle.is_some() || !queue.tickets.is_empty() {
            return;
        }
        if queue.tickets.capacity() > KEPT_CAPACITY {
            queue.tickets = VecDeque::new();
        }
        self.last_idle += 1;
        queue.idle = Some(self.last_idle);
        self.idle.insert(self.last_idle, (name, now));
        self.forget_idle(now, limits);
    }

    pub(super) fn forget_idle(&mut self, now: Micros, limits: &Limits) {
        let over = |since: Micros| limits.idle_ttl.is_some_and(|ttl| since.after(ttl) <= now);
        while let Some((_, (_, since))) = self.idle.first_key_value()
            && (self.idle.len() > limits.max_idle_keys || over(*since))
            && let Some((_, (oldest, _))) = self.idle.pop_first()
        {
            self.queues.remove(&oldest);
        }
    }

    /// What the head of a queue is told when it becomes the head.
    pub(super) fn grant(&self, key: &str) -> Option<Effect> {
        let (name, queue) = self.queues.get_key_value(key)?;
        let head = queue.tickets.front()?;
        Some(Effect::Granted {
            key: Arc::clone(name),
            ticket: head.ticket.clone(),
            fence: Fence(head.number),
            previous: queue.previous.clone(),
        })
    }

    /// What the head of a queue is told when others wait.
    pub(super) fn nudge(&self, key: &str) -> Option<Effect> {
        let (name, queue) = self.queues.get_key_value(key)?;
        Some(Effect::Nudged { key: Arc::clone(name), ticket: queue.tickets.front()?.ticket.clone() })
    }

    pub(super) fn snapshot(&self) -> (Vec<QueueSnapshot>, Idle) {
        let busy = self.queues.iter().filter(|(_, queue)| queue.idle.is_none());
        let mut busy: Vec<_> = busy
            .map(|(name, queue)| {
                let tickets = queue.tickets.iter();
                let tickets = tickets.map(|place| (Fence(place.number), place.ticket.clone())).collect();
                QueueSnapshot { key: Arc::clone(name), previous: queue.previous.clone(), tickets }
            })
            .collect();
        busy.sort_unstable();
        let idle = self.idle.values();
        (busy, idle.map(|(name, _)| (Arc::clone(name), self.previous(name))).collect())
    }
}
