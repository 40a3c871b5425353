//! One message of a conversation at a time, in the order of arrival; conversations in parallel.

mod left;
mod look;
#[cfg(test)]
mod look_tests;
mod queues;
mod tickets;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::bot::Coordination;
use crate::core::id::ConversationKey;
use crate::core::inbound::Inbound;
use crate::core::journal::{InboxRecord, Stored};
use crate::core::time::Timestamp;
use crate::dispatch::Dispatcher;
use crate::metrics::Unfinished;
use crate::world::{OpenJournal, World};
use look::Looks;
use queues::Queues;
pub(crate) use queues::{Placed, Slot};

/// A message that waits for its turn.
pub(crate) struct Work {
    pub(crate) inbound: Arc<Inbound>,
    /// When it arrived.
    pub(crate) received: Timestamp,
    /// Its inbox record; `None` without durability.
    pub(crate) record: Option<Stored<InboxRecord>>,
    /// Whether it was attempted before.
    pub(crate) replay: bool,
    /// Whether it begins only when it has its turn, if it is to be handled still: it was taken over before, perhaps by another
    /// replica, and the channel delivered it again, or a process ended with it.
    pub(crate) under_turn: bool,
    /// Hears that its place in the order of the chat is certain, or that it goes without one. Dropped if it has none.
    pub(crate) placed: Option<oneshot::Sender<()>>,
    /// How often the lease had lapsed when the record was written last.
    pub(crate) lapses: u64,
    /// How long it waited for the inbox.
    pub(crate) journaled_in: Duration,
    /// Kept until it is finished.
    pub(crate) unfinished: Option<Unfinished>,
    /// Its share of the backlog, given back when it is finished.
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
    /// Held by a message that may be what ends the process: one of them runs at a time.
    pub(crate) alone: Option<OwnedMutexGuard<()>>,
}

impl Work {
    pub(crate) fn new(
        inbound: Arc<Inbound>,
        received: Timestamp,
        record: Option<Stored<InboxRecord>>,
    ) -> Self {
        Self {
            inbound,
            received,
            record,
            replay: false,
            under_turn: false,
            placed: None,
            lapses: 0,
            journaled_in: Duration::ZERO,
            unfinished: None,
            _permit: None,
            alone: None,
        }
    }

    /// Its place in the order of the chat is certain, or it goes without one.
    fn place(&mut self) {
        if let Some(placed) = self.placed.take() {
            // Nobody may wait for it.
            let _ = placed.send(());
        }
    }
}

pub(crate) struct Turns {
    world: Arc<World>,
    coordination: Coordination,
    dispatcher: Dispatcher,
    running: Arc<Semaphore>,
    queues: Arc<Queues>,
    looks: Looks,
    suspects: Suspects,
}

/// The messages that may be what ends the process.
#[derive(Default)]
struct Suspects {
    /// Held by the one that runs.
    one: Arc<Mutex<()>>,
    /// How many have begun.
    begun: AtomicU64,
}

impl Turns {
    pub(crate) fn new(
        world: Arc<World>,
        coordination: Coordination,
        dispatcher: Dispatcher,
        max_concurrent: usize,
    ) -> Arc<Self> {
        let running = Arc::new(Semaphore::new(max_concurrent));
        let (queues, looks, suspects) = Default::default();
        Arc::new(Self { world, coordination, dispatcher, running, queues, looks, suspects })
    }

    /// Takes the next place in the conversation's queue. Places are served in the order of these calls, whenever they
    /// are filled.
    pub(crate) fn reserve(self: &Arc<Self>, key: ConversationKey) -> Slot {
        Queues::reserve(self, key)
    }

    /// Waits for the end of the other messages that may be what ends the process. One that stands still holds back the others for
    /// no longer than a lease.
    pub(crate) async fn alone(&self) -> Option<OwnedMutexGuard<()>> {
        let open = self.world.journal.as_ref()?;
        let Suspects { one, begun } = &self.suspects;
        loop {
            let before = begun.load(Ordering::SeqCst);
            tokio::select! {
                biased;
                alone = Arc::clone(one).lock_owned() => {
                    begun.fetch_add(1, Ordering::SeqCst);
                    return Some(alone);
                }
                () = self.world.seams.clock.sleep(open.config.inbox.lease) => {
                    if begun.load(Ordering::SeqCst) == before {
                        return None;
                    }
                }
            }
        }
    }

    /// Lets a message begin after the other ones that may be what ends the process, if it may be that too. If all of them ran at
    /// once, each death would cost the innocent among them an attempt as well, until they are given up with the guilty one.
    async fn set_apart(&self, open: &OpenJournal, work: &mut Work) {
        let max = open.config.inbox.max_attempts;
        if work.alone.is_none() && work.record.as_ref().is_some_and(|stored| stored.record.is_suspect(max)) {
            work.alone = self.world.stopping.run_until_cancelled(self.alone()).await.flatten();
        }
    }

    pub(crate) fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// Whether the conversation has messages that are not finished.
    pub(crate) fn is_serving(&self, key: &ConversationKey) -> bool {
        self.queues.contains(key)
    }

    /// Forgets what waits. With durability it stays in the inbox and is taken up at the next start.
    pub(crate) fn clear(&self) {
        for tickets in self.queues.clear() {
            self.abandon(tickets);
        }
    }
}
