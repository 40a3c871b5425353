//! Calls that find as many of their lane under way as may be wait for one of those, and are sent together then: under load the
//! server runs one script for many tickets, and nobody waits as long as it has nothing else to do.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use botmesh_core::coordinator::machine::{Leaving, Standing};
use botmesh_core::error::{StoreError, StoreErrorKind};
use tokio::sync::{Notify, oneshot};

use super::session::Session;
use super::shared::Shared;
use super::wire::{Answer, Ask, Asked, Entry, Next, Texts};
use crate::client::Unexpected;

/// How many calls are under way before further ones wait. With fewer the server has nothing to do while answers are on their
/// way, with more the groups are smaller.
const UNDER_WAY: usize = 16;

/// How many tickets go in one call at most. Nobody else is served meanwhile.
const TOGETHER: usize = 64;

/// What becomes of a ticket that waits to go with others; `None` if it is to be asked for by itself.
type Answered = Result<Option<Answer<Texts>>, StoreError>;

struct Waiting {
    session: Arc<Session>,
    ask: Ask,
    answer: oneshot::Sender<Answered>,
}

#[derive(Default)]
struct State {
    under_way: usize,
    waiting: VecDeque<Waiting>,
    /// Nobody sends groups, so that nobody may wait for one.
    is_closed: bool,
}

/// The calls of a lane.
#[derive(Default)]
pub(super) struct Groups {
    state: Mutex<State>,
    /// Tells that a group may be due.
    pub(super) due: Notify,
}

/// Tickets of one session that go in one call.
pub(super) struct Group {
    session: Arc<Session>,
    tickets: Vec<Ask>,
    answers: Vec<oneshot::Sender<Answered>>,
}

enum Joined<'a> {
    Alone(UnderWay<'a>),
    Together(Answer<Texts>),
}

/// Lets others go when it is dropped.
pub(super) struct UnderWay<'a>(&'a Groups);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.under_way -= 1;
        if !state.waiting.is_empty() {
            self.0.due.notify_one();
        }
    }
}

impl Groups {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on every ticket goes by itself.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        drop(std::mem::take(&mut state.waiting));
    }

    /// Waits for the answer of a group, unless the ticket can go at once or has to go by itself. When this is dropped before the
    /// group is sent, the ticket does not go with it.
    async fn join(&self, session: &Arc<Session>, ask: Ask) -> Result<Joined<'_>, StoreError> {
        let answered = {
            let mut state = self.state();
            // Nobody passes those that wait already: they could be passed for ever.
            if state.is_closed || state.under_way < UNDER_WAY && state.waiting.is_empty() {
                state.under_way += 1;
                return Ok(Joined::Alone(UnderWay(self)));
            }
            let (answer, answered) = oneshot::channel();
            state.waiting.push_back(Waiting { session: Arc::clone(session), ask, answer });
            answered
        };
        match answered.await {
            Ok(Ok(Some(answer))) => Ok(Joined::Together(answer)),
            Ok(Err(error)) => Err(error),
            Ok(Ok(None)) | Err(_) => {
                self.state().under_way += 1;
                Ok(Joined::Alone(UnderWay(self)))
            }
        }
    }

    /// The next group, if it may be sent.
    pub(super) fn take(&self) -> Option<(UnderWay<'_>, Group)> {
        let mut state = self.state();
        if state.under_way >= UNDER_WAY {
            return None;
        }
        let session = Arc::clone(&state.waiting.front()?.session);
        let mut group = Group { session, tickets: Vec::new(), answers: Vec::new() };
        while group.tickets.len() < TOGETHER
            && let Some(waiting) =
                state.waiting.pop_front_if(|next| Arc::ptr_eq(&next.session, &group.session))
        {
            if !waiting.answer.is_closed() {
                group.tickets.push(waiting.ask);
                group.answers.push(waiting.answer);
            }
        }
        state.under_way += 1;
        drop(state);
        Some((UnderWay(self), group))
    }
}

impl Shared {
    /// Asks for a ticket.
    pub(super) async fn enter(
        &self,
        session: &Arc<Session>,
        key: &Arc<str>,
        entry: Entry,
    ) -> Result<Answer<Standing>, StoreError> {
        let ask = Ask { key: Arc::clone(key), seq: entry.seq, asked: Asked::Enter };
        let alone = || self.wire.enter(&session.lane.bucket, key, &session.id, entry, &self.config);
        self.ask_for(session, ask, alone, Texts::standing).await
    }

    /// Gives a ticket back.
    pub(super) async fn leave(
        &self,
        session: &Arc<Session>,
        key: &Arc<str>,
        seq: u64,
        leaving: Leaving,
    ) -> Result<Answer<(bool, Option<Next>)>, StoreError> {
        let ask = Ask { key: Arc::clone(key), seq, asked: Asked::Leave(leaving) };
        let alone =
            || self.wire.leave(&session.lane.bucket, key, &session.id, seq, leaving, self.config.idle_ttl);
        self.ask_for(session, ask, alone, Texts::left).await
    }

    async fn ask_for<T, F: Future<Output = Result<Answer<T>, StoreError>>>(
        &self,
        session: &Arc<Session>,
        ask: Ask,
        alone: impl FnOnce() -> F,
        read: fn(Texts) -> Result<T, Unexpected>,
    ) -> Result<Answer<T>, StoreError> {
        match session.lane.groups.join(session, ask).await? {
            Joined::Alone(_under_way) => alone().await,
            Joined::Together(Answer { epoch, moved, what }) => {
                let what = read(what).map_err(|what| self.wire.strange(what))?;
                Ok(Answer { epoch, moved, what })
            }
        }
    }

    /// Sends a group, and tells each what became of its ticket.
    pub(super) async fn send(&self, under_way: UnderWay<'_>, group: Group) {
        let Group { session, tickets, answers } = group;
        // While it is waited for a connection, who asked for a ticket may go.
        if tickets.is_empty() || !self.wire.client.is_connected() {
            return;
        }
        let (lane, idle_ttl) = (&session.lane, self.config.idle_ttl);
        let answer = self.wire.together(&lane.bucket, &session.id, &tickets, lane.floor(), idle_ttl).await;
        drop(under_way);
        match answer {
            Ok(Answer { epoch, moved, what }) => {
                for (answer, what) in answers.into_iter().zip(what) {
                    let what = what.map(|what| Answer { epoch: epoch.clone(), moved, what });
                    // Whoever asked may have gone.
                    drop(answer.send(Ok(what)));
                }
            }
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                for answer in answers {
                    drop(answer.send(Err(error.clone())));
                }
            }
            // One of them may be why; each finds out by itself.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
