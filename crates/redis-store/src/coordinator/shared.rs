//! What the handles of a coordinator share with its thread and with what serves their calls.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use botmesh_core::coordinator::Trouble;
use botmesh_core::coordinator::machine::{Ending, Leaving, Liveness, Standing};
use botmesh_core::entropy::{Entropy, random_hex};
use botmesh_core::error::{LeaseLost, LeaseLostReason, StoreError, StoreErrorKind};
use botmesh_core::id::SessionId;
use botmesh_core::time::Clock;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::bucket::place_of;
use super::config::RedisCoordinatorConfig;
use super::failure::Failure;
use super::lane::{Job, Lane};
use super::rules::keeps;
use super::session::{Grant, Session, until_poll};
use super::wire::{Answer, Push, Wire};
use crate::client::{Client, Node};
use crate::error::{BACKEND, is_on_its_way};

/// A lane, and its last session.
type Slot = (Arc<Lane>, Mutex<Option<Arc<Session>>>);

pub(super) struct Shared {
    pub(super) config: RedisCoordinatorConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) wire: Wire,
    pub(super) margin: Duration,
    /// The first part of the names of sessions, the one of the next session last. Those before are of lanes that still have a
    /// session of theirs.
    incarnations: Mutex<Vec<String>>,
    /// Cancelled when the coordinator is closed or dropped.
    pub(super) stop: CancellationToken,
    end: OnceLock<LeaseLostReason>,
    /// The thread ends without a word to the server.
    pub(super) crashed: AtomicBool,
    /// Cancelled when the thread has told the server.
    pub(super) stopped: CancellationToken,
    /// Cancelled when nobody serves the calls any more.
    pub(super) served: CancellationToken,
    lanes: Vec<Slot>,
    generations: AtomicU64,
    /// The server is to be told of the end of these.
    ends: mpsc::UnboundedSender<Arc<Session>>,
    /// Tells that pushes may not arrive.
    pub(super) unheard: Notify,
    /// Tells that a lane has queues that are to be swept.
    pub(super) unswept: Notify,
    /// Why pushes do not arrive.
    unpushed: Failure,
    /// The lanes at whose servers the clock stands still, and what that is.
    still: Mutex<BTreeSet<usize>>,
    stopped_clock: Failure,
}

/// Who the replica is, and what it found out about the server.
pub(super) struct Begun {
    pub(super) incarnation: String,
    pub(super) margin: Duration,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) ends: mpsc::UnboundedSender<Arc<Session>>,
}

impl Shared {
    pub(super) fn new(
        config: RedisCoordinatorConfig,
        clock: Arc<dyn Clock>,
        wire: Wire,
        begun: Begun,
        lanes: Vec<Arc<Lane>>,
    ) -> Self {
        Self {
            config,
            clock,
            entropy: begun.entropy,
            wire,
            margin: begun.margin,
            incarnations: Mutex::new(vec![begun.incarnation]),
            stop: CancellationToken::new(),
            end: OnceLock::new(),
            crashed: AtomicBool::new(false),
            stopped: CancellationToken::new(),
            served: CancellationToken::new(),
            lanes: lanes.into_iter().map(|lane| (lane, Mutex::default())).collect(),
            generations: AtomicU64::new(0),
            ends: begun.ends,
            unheard: Notify::new(),
            unswept: Notify::new(),
            unpushed: Failure::default(),
            still: Mutex::default(),
            stopped_clock: Failure::default(),
        }
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes.iter().map(|(lane, _)| lane)
    }

    /// The lane of a key.
    pub(super) fn lane(&self, key: &str) -> &Arc<Lane> {
        &self.lanes[place_of(key, self.lanes.len())].0
    }

    pub(super) fn incarnations(&self) -> Vec<String> {
        self.incarnations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The names of later sessions have nothing in common with that of a lost one.
    pub(super) fn rename(&self, lost: &Session) {
        let sessions = self.sessions();
        let of = |name: &str, session: &Session| session.id.as_str().starts_with(name);
        let mut incarnations = self.incarnations.lock().unwrap_or_else(PoisonError::into_inner);
        if incarnations.last().is_some_and(|name| of(name, lost)) {
            incarnations
                .retain(|name| sessions.iter().any(|session| session.end().is_none() && of(name, session)));
            incarnations.push(random_hex(&*self.entropy));
        }
    }

    pub(super) fn trouble(&self, about: Trouble) -> Option<Arc<StoreError>> {
        match about {
            Trouble::Pushes => self.unpushed.get(),
            Trouble::Clock => self.stopped_clock.get(),
            _ => None,
        }
    }

    pub(super) fn set_unpushed(&self, error: Option<StoreError>) {
        self.unpushed.set(error);
    }

    /// Whether the clock of a lane's server goes.
    pub(super) fn set_clock(&self, lane: &Lane, goes: bool) {
        let mut still = self.still.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, _) =
            (still.len(), if goes { still.remove(&lane.number) } else { still.insert(lane.number) });
        if before == 0 && !still.is_empty() {
            let what = format!(
                "{}: its clock has stood still for a lease, so that no lease ends and nobody goes on after a replica that died; \
                 start it again, and see to the clock of its host",
                self.wire.client.place()
            );
            let error = StoreError::new(StoreErrorKind::Incompatible, BACKEND, "turns", what);
            tracing::warn!(%error, "the server's clock stands still");
            self.stopped_clock.set(Some(error));
        } else if before != 0 && still.is_empty() {
            self.stopped_clock.set(None);
        }
    }

    fn slot(&self, lane: &Lane) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.lanes[lane.number].1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last session of a lane; `None` if it never had one.
    pub(super) fn session(&self, lane: &Lane) -> Option<Arc<Session>> {
        self.slot(lane).clone()
    }

    /// The last session of each lane that had one.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        self.lanes().filter_map(|lane| self.session(lane)).collect()
    }

    /// The session of the first lane, which always has one.
    pub(super) fn first(&self) -> Option<Arc<Session>> {
        self.session(&self.lanes[0].0)
    }

    /// Ends everything for good. Nothing is sent to the server. Whoever ends it first says why.
    pub(super) fn finish(&self, reason: LeaseLostReason) {
        let reason = *self.end.get_or_init(|| reason);
        self.stop.cancel();
        for session in self.sessions() {
            session.finish(reason);
        }
        for lane in self.lanes() {
            lane.opened.notify_waiters();
        }
    }

    /// Whether a session may act. Compares numbers; one whose time is over ends here at the latest.
    pub(super) fn check(&self, session: &Arc<Session>) -> Result<(), LeaseLost> {
        if let Some(lost) = session.end() {
            return Err(lost);
        }
        let now = self.clock.monotonic();
        if now < session.valid_until() || !keeps!(self.config, SelfFencing) {
            return Ok(());
        }
        let reason = if now.saturating_sub(session.looked()) > self.config.lease / 2 {
            LeaseLostReason::Stalled
        } else {
            LeaseLostReason::CoordinatorLost
        };
        self.lose(session, reason);
        Err(session.end().unwrap_or(LeaseLost { reason }))
    }

    /// The thread looks at its clock.
    pub(super) fn look(&self, session: &Session) -> Duration {
        let now = self.clock.monotonic();
        session.look(now);
        now
    }

    /// A heartbeat that was sent then was accepted: the session lives on.
    pub(super) fn beat(&self, session: &Session, sent: Duration) {
        session.beat(sent, sent + self.config.lease - self.margin);
    }

    /// How long ago the last accepted heartbeat was sent, in the lane that was heard longest ago. Lanes that are not used
    /// send none; the first one always is.
    pub(super) fn last_beat(&self) -> Option<Duration> {
        let sessions = self.sessions();
        let used =
            sessions.iter().filter(|session| session.lane.number == 0 || session.ending() == Ending::Lost);
        let oldest = used.map(|session| session.beaten()).min()?;
        Some(self.clock.monotonic().saturating_sub(oldest))
    }

    pub(super) fn lose(&self, session: &Arc<Session>, reason: LeaseLostReason) {
        if !session.finish(reason) {
            return;
        }
        if reason != LeaseLostReason::Released {
            tracing::warn!(
                session = session.id.as_str(),
                ?reason,
                server = self.wire.client.place(),
                "the session of this replica is lost with all its turns; it goes on under a new one"
            );
        }
        if keeps!(self.config, NewSessions) {
            // When the thread has ended nobody is left who tells it.
            drop(self.ends.send(Arc::clone(session)));
        }
    }

    /// A call of a session was answered, or not. When all have failed for a lease it ends, though its heartbeats pass: others wait
    /// for what it cannot give back.
    pub(super) fn called<T>(&self, session: &Arc<Session>, answer: &Result<T, StoreError>) {
        match answer {
            Ok(_) => session.works(),
            // Nobody can do it now, so nobody waits for what this replica cannot give back.
            Err(error) if is_on_its_way(error) => {}
            Err(error) if error.retry() && session.fails(self.clock.monotonic()) >= self.config.lease => {
                self.lose(session, LeaseLostReason::CoordinatorLost);
            }
            Err(_) => {}
        }
    }

    /// Whether an answer is of a session's epoch. If not, the server lost what the session knows.
    pub(super) fn is_of<T>(&self, session: &Arc<Session>, answer: &Answer<T>) -> bool {
        let same = self.is_known(session, answer);
        if same && answer.moved {
            // The node that has the bucket now may not know what the one before acknowledged last.
            self.doubt(session);
        }
        same
    }

    fn is_known<T>(&self, session: &Arc<Session>, answer: &Answer<T>) -> bool {
        let same = answer.epoch.as_ref().is_some_and(|epoch| **epoch == *session.epoch.as_bytes());
        if !same {
            self.lose(session, LeaseLostReason::DataLoss);
        }
        same
    }

    /// The server is asked for every ticket of the session, and until then [`Turn::confirm`] waits.
    ///
    /// [`Turn::confirm`]: botmesh_core::coordinator::Turn::confirm
    pub(super) fn doubt(&self, session: &Arc<Session>) {
        if session.doubt() {
            session.lane.job(Job::Ask(Arc::clone(session)));
        }
    }

    /// The connection is another one.
    pub(super) fn doubt_at(&self, client: &Client, node: &Arc<Node>) {
        for session in self.sessions() {
            if client.serves(node, session.lane.bucket.slot()) {
                self.doubt(&session);
            }
        }
    }

    /// A new session of a lane, if the server opens it.
    pub(super) async fn open(
        &self,
        wire: &Wire,
        lane: &Arc<Lane>,
    ) -> Result<Option<Arc<Session>>, StoreError> {
        let known = self.session(lane).map(|last| Arc::clone(&last.epoch));
        let another = u64::from(keeps!(self.config, NewSessions));
        let generation = self.generations.fetch_add(another, Ordering::Relaxed);
        let incarnation = self.incarnations().pop().unwrap_or_default();
        let id = SessionId::from(format!("{incarnation}.{generation}"));
        let sent = self.clock.monotonic();
        let answer = wire.open(&lane.bucket, &id, self.config.lease, known.as_deref(), lane.floor()).await?;
        let (Some(epoch), Liveness::Alive) = (answer.epoch, answer.what) else { return Ok(None) };
        let epoch = Arc::from(&*String::from_utf8_lossy(&epoch));
        if known.as_ref().is_some_and(|known| *known != epoch) {
            tracing::warn!(
                known = known.as_deref(),
                epoch = &*epoch,
                server = wire.client.place(),
                "the server lost the data of the turns; fences go on growing, and turns are given again after a lease"
            );
        }
        let session =
            Arc::new(Session::new(id, epoch, Arc::clone(lane), sent, sent + self.config.lease - self.margin));
        *self.slot(lane) = Some(Arc::clone(&session));
        lane.opened.notify_waiters();
        Ok(Some(session))
    }

    /// When a ticket asks whose holder has so much of its lease left.
    pub(super) fn poll_at(&self, remaining: Option<Duration>) -> Duration {
        let after = if keeps!(self.config, RarePolls) {
            until_poll(remaining, self.config.lease)
        } else {
            Duration::from_millis(5)
        };
        self.clock.monotonic() + after
    }

    /// What the server pushed. Nothing of another epoch or of an earlier session is of interest: its tickets are gone.
    pub(super) fn pushed(&self, push: Push) {
        let Some(session) = self.session(self.lane(&push.key)) else { return };
        if push.epoch != session.epoch || push.session != session.id {
            return;
        }
        let known = if push.grants {
            session.lane.saw(push.fence);
            session.grant(push.seq, Grant { previous: push.previous })
        } else {
            session.knows(push.seq)
        };
        if !known && keeps!(self.config, LeaveUnknown) {
            let lane = Arc::clone(&session.lane);
            lane.job(Job::Leave { session, key: push.key, seq: push.seq, leaving: Leaving::Unused });
        }
    }

    /// What the answer to a poll means. It raises no doubt, since it is what clears one up. Whether the ticket stands as this replica believes.
    pub(super) fn polled(&self, session: &Arc<Session>, seq: u64, answer: Answer<Standing>) -> bool {
        // A ticket that was given back meanwhile may be unknown.
        if !session.knows(seq) || session.end().is_some() || !self.is_known(session, &answer) {
            return true;
        }
        match answer.what {
            Standing::Granted { fence, previous } => {
                session.lane.saw(fence);
                session.grant(seq, Grant { previous });
            }
            // A failover lost that somebody before left, who will be asked for it.
            Standing::Waiting { .. } if session.holds(seq) => return false,
            Standing::Waiting { remaining, .. } => {
                session.ask_at(seq, self.poll_at(remaining));
            }
            Standing::Dead => self.lose(session, LeaseLostReason::Expired),
            // A failover lost what had been acknowledged.
            Standing::Unknown if session.entered().iter().any(|(known, _)| *known == seq) => {
                self.lose(session, LeaseLostReason::DataLoss);
            }
            Standing::Unknown | Standing::Busy { .. } | Standing::Overloaded => {}
        }
        true
    }
}
