//! Tickets are taken as messages arrive, not when their turn comes: what arrives at another replica meanwhile comes after.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::Turns;
use super::queues::{Queues, Takes};
use crate::core::coordinator::{Coordinator, Ticket, Turn};
use crate::core::error::CoordinationUnavailable;
use crate::core::id::ConversationKey;

/// Takes a ticket for each message that waits behind the one that is handled. A ticket that cannot be taken is left to the
/// time when its message is to run.
async fn take_for_waiting(
    queues: Arc<Queues>,
    coordinator: Arc<dyn Coordinator>,
    key: ConversationKey,
    encoded: String,
) {
    loop {
        // The next call begins after this one was answered, so that tickets come in the order of the messages.
        let lane = queues.lanes.enter(&key).await;
        let ticket = coordinator.enter(&encoded).await.ok();
        let more = queues.add_ticket(&key, ticket);
        drop(lane);
        if !more {
            return;
        }
    }
}

impl Turns {
    /// Takes the tickets that are to be taken for a conversation, in the background.
    pub(super) fn take_tickets(&self, key: &ConversationKey) {
        if self.world.coordinated && self.queues.begin_taking(key) {
            let coordinator = Arc::clone(&self.coordination.coordinator);
            let encoded = self.world.replicas.chat_key(key);
            let taking = take_for_waiting(Arc::clone(&self.queues), coordinator, key.clone(), encoded);
            self.world.spawn_tracked("ticket", taking);
        }
    }

    /// The turn of the conversation's next message, and whether it came later than the message did. `placed` hears when its
    /// ticket is taken.
    pub(super) async fn next_turn(
        &self,
        key: &ConversationKey,
        placed: Option<oneshot::Sender<()>>,
    ) -> Result<(Turn, bool), CoordinationUnavailable> {
        if !self.world.coordinated {
            return Ok((self.enter(key).await?.granted().await?, false));
        }
        let (mut ticket, taken) = {
            let _lane = self.queues.lanes.enter(key).await;
            match self.queues.next_ticket(key) {
                Some(ticket) => (ticket, true),
                None => (self.enter(key).await?, false),
            }
        };
        if let Some(placed) = placed {
            // Nobody may wait for it.
            let _ = placed.send(());
        }
        self.take_tickets(key);
        if let Some(Ok(turn)) = ticket.granted().now_or_never() {
            return Ok((turn, taken));
        }
        let turn = match ticket.granted().await {
            Err(_) if taken => {
                // The session died that took it, and the others with it.
                drop(self.queues.take_back(key, Takes::Later));
                self.enter(key).await?.granted().await
            }
            granted => granted,
        };
        Ok((turn?, true))
    }

    /// Keeps places in the queue until their turns come, only to say that something is left: whoever comes next looks for it.
    pub(super) fn abandon(&self, tickets: VecDeque<Ticket>) {
        if tickets.is_empty() {
            return;
        }
        // A stop does not wait for it: when the session ends, they count as abandoned.
        self.world.seams.spawn("abandon", async move {
            for mut ticket in tickets {
                if let Ok(turn) = ticket.granted().await {
                    turn.abandon();
                }
            }
        });
    }

    pub(super) async fn enter(&self, key: &ConversationKey) -> Result<Ticket, CoordinationUnavailable> {
        self.coordination.coordinator.enter(&self.world.replicas.chat_key(key)).await
    }
}
