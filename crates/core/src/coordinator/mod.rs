//! Turns: one replica for each chat at a time, in the order in which tickets were taken.
//!
//! The holder of a chat is the lowest ticket whose session is alive; there is no other record of holding. A dead session
//! never comes back. A ticket's number is its place in the queue and its fence at once, and grows through evictions,
//! restarts and lost data.

pub mod machine;
mod memory;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::{CoordinationUnavailable, LeaseLost, StoreError};
use crate::id::SessionId;
pub use memory::{MemoryCoordinator, MemoryHub};

/// A number that grows with every turn of a key. A resource refuses a write whose fence is smaller than one it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

/// Gives out turns.
#[async_trait]
pub trait Coordinator: Send + Sync + 'static {
    /// This coordinator's current session. One that divides its keys has a session for each part, and this is the first of
    /// them; [`Turn::session`] names that of a turn.
    fn session(&self) -> SessionId;

    /// Takes a ticket in the queue of `key`. Tickets of one key are served in the order in which these calls returned.
    ///
    /// # Errors
    /// The coordinator is down, closed, or has no room. No ticket is left behind.
    ///
    /// # Cancel safety
    /// A dropped call leaves no ticket behind (at most for one round trip).
    async fn enter(&self, key: &str) -> Result<Ticket, CoordinationUnavailable>;

    /// Takes the turn of `key` if nobody holds it or waits for it; `None` if somebody does. The default takes a ticket and
    /// gives it back if it is not the head of its queue.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    ///
    /// # Cancel safety
    /// As [`enter`](Self::enter).
    async fn try_enter(&self, key: &str) -> Result<Option<Turn>, CoordinationUnavailable> {
        let mut ticket = self.enter(key).await?;
        let mut granted = ticket.handle.granted();
        match granted.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => turn.map(Some),
            Poll::Pending => Ok(None),
        }
    }

    /// Takes the lock `key` for `ttl` (at least 1 ms) if it is free. Locks have keys of their own, apart from those of turns, and
    /// no queue; a lock belongs to its token and not to a session, so that it outlives a replica by at most `ttl`.
    ///
    /// The caller names the acquisition by a token of its own: sent again while the lock is held, it is the same acquisition with
    /// the same fence, and prolongs it. Of two acquisitions, the later one has the larger fence. `None`: somebody else holds it,
    /// or the coordinator has just lost its data.
    ///
    /// # Errors
    /// The coordinator is down, closed, or has no room. The lock may have been taken; acquire or release it with the same token.
    ///
    /// # Cancel safety
    /// As after an error: a dropped call may have taken the lock.
    async fn acquire_lock_fenced(
        &self,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Fence>, CoordinationUnavailable>;

    /// Prolongs a lock to `ttl` (at least 1 ms) from now. Its fence, or `None` if `token` does not hold it.
    ///
    /// # Errors
    /// The coordinator is down or closed. The lock may have been prolonged.
    async fn renew_lock(
        &self,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Fence>, CoordinationUnavailable>;

    /// Frees a lock. Whether `token` held it; the lock of another token stays as it is.
    ///
    /// # Errors
    /// The coordinator is down or closed. The lock may have been freed.
    async fn release_lock(&self, key: &str, token: &str) -> Result<bool, CoordinationUnavailable>;

    /// How long before its lease runs out a session stops acting at the latest. Who takes a turn that was not given back
    /// waits as long before it uses what only one process may use. Default 1 s.
    fn margin(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// How long ago the last accepted heartbeat of the session began. `None`, the default, if it needs none.
    fn last_beat(&self) -> Option<Duration> {
        None
    }

    /// From now on every fence is larger than `floor`: the largest one that the bot's store has seen. The bot calls it when it
    /// starts, so that its store takes what is written under the new turns, also after the coordinator lost its data or its
    /// clock was set back. The default does nothing.
    fn raise_floor(&self, floor: Fence) {
        let _ = floor;
    }

    /// What an operator must look into although turns are given. The bot tells of each once, as an event `error`, until it is over.
    /// `None`, the default, if there is nothing.
    fn trouble(&self, about: Trouble) -> Option<Arc<StoreError>> {
        let _ = about;
        None
    }

    /// Ends the session: abandons every ticket and turn and lets others go on at once. Later calls fail.
    async fn close(&self);
}

/// What may be wrong with a coordinator that gives turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Pushes do not arrive: this replica asks for its turns, and has them later.
    Pushes,
    /// The server's clock stands still: no lease ends, and nobody goes on after a replica that died.
    Clock,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Pushes, Self::Clock];
}

/// A place in a key's queue. Dropping it gives it back.
#[must_use]
pub struct Ticket {
    fence: Fence,
    handle: Box<dyn TicketHandle>,
}

/// A backend's side of a [`Ticket`]. Dropping it without a grant leaves the queue.
#[async_trait]
pub trait TicketHandle: Send + Sync {
    /// Waits until the ticket is the head of its queue. Cancel safe: a dropped wait can be started again.
    ///
    /// # Errors
    /// The session died or the coordinator is gone; the ticket is worth nothing.
    async fn granted(&mut self) -> Result<Turn, CoordinationUnavailable>;
}

impl Ticket {
    /// For coordinators.
    pub fn new(fence: Fence, handle: Box<dyn TicketHandle>) -> Self {
        Self { fence, handle }
    }

    /// The number of the ticket.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Waits for the turn.
    ///
    /// # Errors
    /// The session died or the coordinator is gone; take another ticket.
    ///
    /// # Cancel safety
    /// Cancel safe: the place in the queue is kept until the ticket is dropped.
    pub async fn granted(&mut self) -> Result<Turn, CoordinationUnavailable> {
        self.handle.granted().await
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// The right to act for a key, and the proof of it: sends and checkpoint writes take `&Turn`.
///
/// Clones share one turn; it ends with [`release`](Self::release), with [`abandon`](Self::abandon) or, like that, when the last
/// clone is dropped.
#[derive(Clone)]
pub struct Turn {
    fence: Fence,
    session: SessionId,
    previous: Option<SessionId>,
    handle: Arc<dyn TurnHandle>,
}

/// A backend's side of a [`Turn`]. Dropping it abandons the turn.
#[async_trait]
pub trait TurnHandle: Send + Sync {
    /// Whether the turn is still held. Compares numbers; no input or output.
    ///
    /// # Errors
    /// It is lost or released.
    fn check(&self) -> Result<(), LeaseLost>;

    /// See [`Turn::confirm`]. The default is right where a check is never out of date.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    async fn confirm(&self) -> Result<(), LeaseLost> {
        self.check()
    }

    /// Returns when the turn is lost or released.
    async fn lost(&self) -> LeaseLost;

    /// Gives the turn back. Later checks fail. Harmless when repeated.
    fn release(&self);

    /// Like [`release`](Self::release), but the next holder learns that the turn was not given back. The default is for those
    /// that never say whether one was.
    fn abandon(&self) {
        self.release();
    }

    /// Whether the one before gave the turn back; see [`Turn::was_given_back`].
    fn was_given_back(&self) -> bool {
        false
    }
}

impl Turn {
    /// For coordinators.
    pub fn new(
        fence: Fence,
        session: SessionId,
        previous: Option<SessionId>,
        handle: Arc<dyn TurnHandle>,
    ) -> Self {
        Self { fence, session, previous, handle }
    }

    /// The turn's number.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The session that holds the turn.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The session that held the key before; `None` if it is forgotten. If it is this turn's own session, what this
    /// process remembers of the chat is still the latest. Tickets that were given up before their turn do not count.
    pub fn previous_holder(&self) -> Option<&SessionId> {
        self.previous.as_ref()
    }

    /// Whether the previous holder gave the turn back, and nothing is left that goes before what is done now. `false` if it
    /// [abandoned](Self::abandon) the turn, or if its session ended under it, or while a ticket of it waited: it may not have
    /// noticed yet. Also `false` if the coordinator does not know.
    pub fn was_given_back(&self) -> bool {
        self.handle.was_given_back()
    }

    /// Whether the turn is still held.
    ///
    /// # Errors
    /// It is lost or released.
    pub fn check(&self) -> Result<(), LeaseLost> {
        self.handle.check()
    }

    /// Like [`check`](Self::check), but first waits while the coordinator is in doubt: it was connected anew, perhaps to a
    /// server that does not know the turn, and has not asked yet. To be awaited before an effect that no fence guards, such as
    /// a message to a user. Returns at the end of the lease at the latest. Cancel safe.
    ///
    /// # Errors
    /// It is lost or released.
    pub async fn confirm(&self) -> Result<(), LeaseLost> {
        self.handle.confirm().await
    }

    /// Returns when the turn is lost or released. Cancel safe.
    pub async fn lost(&self) -> LeaseLost {
        self.handle.lost().await
    }

    /// Gives the turn back, so that the next ticket is served: nothing is left that goes before.
    pub fn release(&self) {
        self.handle.release();
    }

    /// Like [`release`](Self::release), but something is left that goes before what the next holder does, or may be.
    /// [`was_given_back`](Self::was_given_back) tells it so.
    pub fn abandon(&self) {
        self.handle.abandon();
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("fence", &self.fence)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
