//! Turns on a Redis server, for replicas on any number of machines.

mod bucket;
#[cfg(test)]
mod bucket_tests;
mod config;
#[cfg(test)]
mod config_tests;
#[cfg(test)]
mod copies_tests;
mod failure;
mod groups;
mod lane;
#[cfg(test)]
mod oracle_tests;
mod rules;
mod serve;
mod session;
mod shared;
mod start;
mod sweep;
mod thread;
mod wire;

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::coordinator::machine::{Leaving, Locking, Standing};
use botmesh_core::coordinator::{Coordinator, Fence, Ticket, TicketHandle, Trouble, Turn, TurnHandle};
use botmesh_core::entropy::{OsEntropy, random_fraction, random_hex};
use botmesh_core::error::{CoordinationUnavailable, LeaseLost, LeaseLostReason, StoreError};
use botmesh_core::id::SessionId;
use botmesh_core::store::Store as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::failure::{Failure, closed, ended, overloaded, timeout, unavailable, unopened};
use self::lane::{Job, Lane};
use self::rules::keeps;
use self::session::{Grant, Session};
use self::shared::Shared;
use self::wire::{Entry, Mode};
use crate::client::Client;
use crate::{RedisConfig, RedisStore};
pub use config::RedisCoordinatorConfig;
#[cfg(feature = "mutations")]
pub(crate) use rules::Altered;
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub use rules::Rule;

/// How long a call waits before it is tried again, at least; at most twice as long.
const RETRY: Duration = Duration::from_millis(50);

/// Gives turns to the replicas of a bot through a Redis server (7.0 or newer) or a Cluster. Clones share their sessions.
///
/// - A turn is told to its replica by a push; nobody polls, except to repair a push that was lost.
/// - One lease covers all turns of a replica, on a Cluster one for each of 64 parts of the keys. A thread of its own prolongs it over
///   a connection of its own, so that no handler delays it. A replica that cannot prolong it stops before the server gives its
///   turns away: every [`Turn::check`] then fails, without asking anybody.
/// - After a loss the replica goes on by itself under a new session. Tickets of the old one are worth nothing.
/// - A server that lost its data gives no turn for a lease, so that no holder from before is left, and then larger fences
///   than before.
/// - The calls of one key are served in the order in which they were made.
///
/// It must be started within a Tokio runtime, which then serves its calls: the coordinator ends with that runtime, and its turns
/// with it. When the last clone and the last of its tickets and turns are dropped, the session ends as by
/// [`close`](Coordinator::close), but nobody waits for it.
#[derive(Clone)]
pub struct RedisCoordinator {
    inner: Arc<Inner>,
}

/// When it is dropped, the thread ends.
struct Inner {
    shared: Arc<Shared>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl RedisStore {
    /// Turns on the same server, under the same prefix, with the defaults of [`RedisCoordinatorConfig`]. Its fences are
    /// above the largest one that the store has seen in its scope. It has two connections and a thread of its own, which
    /// outlive the store.
    ///
    /// # Errors
    /// As [`RedisCoordinator::connect`].
    pub async fn coordinator(&self) -> Result<RedisCoordinator, StoreError> {
        self.coordinator_with(RedisCoordinatorConfig::default()).await
    }

    /// Like [`coordinator`](Self::coordinator), with a configuration.
    ///
    /// # Errors
    /// As [`RedisCoordinator::connect`].
    pub async fn coordinator_with(
        &self,
        config: RedisCoordinatorConfig,
    ) -> Result<RedisCoordinator, StoreError> {
        let floor = config.floor.max(self.last_fence().await?);
        RedisCoordinator::start(Arc::clone(&self.client), config.with_floor(floor)).await
    }
}

impl RedisCoordinator {
    /// Connects to the server at `url` without a store, with the defaults of [`RedisCoordinatorConfig`]. Replicas of one
    /// bot have the same prefix. URL and server are as for [`RedisStore::open`].
    ///
    /// # Errors
    /// The server cannot be used; as for [`RedisStore::open`]. Also
    /// [`Incompatible`](botmesh_core::error::StoreErrorKind::Incompatible) for a server before version 7 or another layout of the turns,
    /// [`Denied`](botmesh_core::error::StoreErrorKind::Denied) for a missing permission and [`Misuse`](botmesh_core::error::StoreErrorKind::Misuse) for a lease that
    /// the distance to the server does not allow.
    pub async fn connect(url: &str, prefix: &str) -> Result<Self, StoreError> {
        let config = RedisConfig::default().with_prefix(prefix);
        Self::connect_with(url, config, RedisCoordinatorConfig::default()).await
    }

    /// Like [`connect`](Self::connect), with configurations. The connection's `command_timeout` does not count: the lease
    /// says how long a command may take (a sixth of it, at most 2 s).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(
        url: &str,
        connection: RedisConfig,
        config: RedisCoordinatorConfig,
    ) -> Result<Self, StoreError> {
        let client = Arc::new(Client::open(url, connection).await?);
        let started = Self::start(Arc::clone(&client), config).await;
        client.close().await?;
        started
    }

    async fn start(client: Arc<Client>, config: RedisCoordinatorConfig) -> Result<Self, StoreError> {
        // Not from a generator of the process, which a copy of it would have too.
        Self::start_as(client, config, random_hex(&OsEntropy::new())).await
    }

    async fn start_as(
        client: Arc<Client>,
        config: RedisCoordinatorConfig,
        incarnation: String,
    ) -> Result<Self, StoreError> {
        let shared = start::start(client, config, incarnation).await?;
        Ok(Self { inner: Arc::new(Inner { shared }) })
    }

    /// For tests: dies as a killed process does. The server is told nothing, its turns are lost
    /// ([`LeaseLostReason::Expired`]), others go on after its lease, and every later call fails.
    pub fn crash(&self) {
        let shared = &self.inner.shared;
        shared.crashed.store(true, Ordering::SeqCst);
        shared.finish(LeaseLostReason::Expired);
    }

    fn lane(&self, key: &str) -> &Arc<Lane> {
        self.inner.shared.lane(key)
    }

    /// What was answered, if the server can be used.
    fn open<T>(
        &self,
        lane: &Lane,
        answer: Result<wire::Answer<T>, StoreError>,
    ) -> Result<T, CoordinationUnavailable> {
        let shared = &self.inner.shared;
        if shared.stop.is_cancelled() {
            return Err(closed());
        }
        let answer = answer.map_err(unavailable)?;
        // If the data is lost, the session learns it here at the latest.
        let _ = shared.session(lane).is_none_or(|session| shared.is_of(&session, &answer));
        Ok(answer.what)
    }

    async fn take(
        &self,
        key: &Arc<str>,
        until: Duration,
        failure: &Failure,
    ) -> Result<Ticket, CoordinationUnavailable> {
        let shared = &self.inner.shared;
        let lane = self.lane(key);
        let _order = if keeps!(shared.config, LocalOrder) { Some(lane.in_order(key).await) } else { None };
        loop {
            let session = self.usable(lane).await?;
            let Some(claim) = Claim::new(&self.inner, &session, key) else { continue };
            let (fence, place) = match self.ask(&claim, Mode::Wait, failure).await? {
                Some(Standing::Granted { fence, previous }) => (fence, Place::Head(Grant { previous })),
                Some(Standing::Waiting { fence, remaining, .. }) => {
                    let ask_at = shared.poll_at(remaining);
                    let Some(place) = session.wait(claim.seq, ask_at) else { continue };
                    lane.sooner.notify_one();
                    (fence, place.map_or_else(Place::Waiting, Place::Head))
                }
                _ => continue,
            };
            lane.saw(fence);
            return Ok(Ticket::new(fence, Box::new(RedisTicket { fence, claim: Some(claim), place, until })));
        }
    }

    async fn try_take(
        &self,
        key: &Arc<str>,
        failure: &Failure,
    ) -> Result<Option<Turn>, CoordinationUnavailable> {
        let lane = self.lane(key);
        let _order = lane.in_order(key).await;
        loop {
            let session = self.usable(lane).await?;
            let Some(claim) = Claim::new(&self.inner, &session, key) else { continue };
            match self.ask(&claim, Mode::Try, failure).await? {
                Some(Standing::Granted { fence, previous }) => {
                    lane.saw(fence);
                    return Ok(Some(claim.turn(fence, Grant { previous })));
                }
                Some(Standing::Busy { .. }) => {
                    claim.forget();
                    return Ok(None);
                }
                _ => {}
            }
        }
    }

    /// Asks for a ticket until the server answers. `None` if the session ended.
    async fn ask(
        &self,
        claim: &Claim,
        mode: Mode,
        failure: &Failure,
    ) -> Result<Option<Standing>, CoordinationUnavailable> {
        let (shared, session) = (&self.inner.shared, &claim.session);
        let Claim { key, seq, .. } = claim;
        loop {
            let entry = Entry { seq: *seq, mode, floor: session.lane.floor() };
            let answer = shared.enter(session, key, entry).await;
            shared.called(session, &answer);
            if session.end().is_some() {
                return Ok(None);
            }
            let answer = match answer {
                Ok(answer) if shared.is_of(session, &answer) => answer.what,
                Ok(_) => return Ok(None),
                Err(error) if error.retry() => {
                    failure.set(Some(error));
                    shared.clock.sleep(RETRY.mul_f64(1.0 + random_fraction(&*shared.entropy))).await;
                    continue;
                }
                Err(error) => return Err(unavailable(error)),
            };
            match answer {
                Standing::Granted { .. } => session.hold(*seq),
                Standing::Overloaded => {
                    return Err(overloaded("as many tickets as may wait for the key do".into()));
                }
                // The dead before it are being buried.
                Standing::Unknown => continue,
                Standing::Dead => {
                    shared.lose(session, LeaseLostReason::Expired);
                    return Ok(None);
                }
                Standing::Waiting { .. } | Standing::Busy { .. } => {}
            }
            return Ok(Some(answer));
        }
    }

    /// What comes of `work` for a key, unless that takes longer than a turn may be waited for.
    async fn in_time<T>(
        &self,
        key: &str,
        work: Pin<&mut (dyn Future<Output = Result<T, CoordinationUnavailable>> + Send)>,
        failure: &Failure,
    ) -> Result<T, CoordinationUnavailable> {
        let shared = &self.inner.shared;
        let wait = shared.config.turn_wait;
        tokio::select! {
            done = work => done,
            () = shared.clock.sleep(wait) => Err(match failure.get() {
                Some(error) => unavailable(error),
                None => self.why_unopened(self.lane(key)).unwrap_or_else(|| timeout(wait)),
            }),
        }
    }

    /// Why a lane has no session, if it has none.
    fn why_unopened(&self, lane: &Lane) -> Option<CoordinationUnavailable> {
        let last = self.inner.shared.session(lane);
        let end = last.as_ref().map(|last| last.end());
        match (end, lane.refused.get()) {
            (Some(None), _) => None,
            (_, Some(error)) => Some(unavailable(error)),
            (end, None) => Some(unopened(end.flatten())),
        }
    }

    /// A session of the lane that has not ended; waits for one.
    async fn usable(&self, lane: &Arc<Lane>) -> Result<Arc<Session>, CoordinationUnavailable> {
        let shared = &self.inner.shared;
        loop {
            let mut opened = pin!(lane.opened.notified());
            opened.as_mut().enable();
            if shared.stop.is_cancelled() {
                return Err(closed());
            }
            if let Some(session) = shared.session(lane)
                && shared.check(&session).is_ok()
            {
                return Ok(session);
            }
            lane.wanted.notify_one();
            tokio::select! {
                () = opened => {}
                () = shared.stop.cancelled() => {}
            }
        }
    }
}

impl fmt::Debug for RedisCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCoordinator")
            .field("place", &self.inner.shared.wire.client.place())
            .field("session", &self.session())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Coordinator for RedisCoordinator {
    /// On a Cluster, turns of different keys may be of different sessions, each in its own part of the keys; this is the
    /// session of the first part. [`Turn::session`] names that of a turn.
    fn session(&self) -> SessionId {
        let shared = &self.inner.shared;
        let unopened = || SessionId::from(shared.incarnations().pop().unwrap_or_default());
        shared.first().map_or_else(unopened, |session| session.id.clone())
    }

    async fn enter(&self, key: &str) -> Result<Ticket, CoordinationUnavailable> {
        let shared = &self.inner.shared;
        let (key, failure) = (Arc::from(key), Failure::default());
        let until = shared.clock.monotonic() + shared.config.turn_wait;
        self.in_time(&key, pin!(self.take(&key, until, &failure)), &failure).await
    }

    async fn try_enter(&self, key: &str) -> Result<Option<Turn>, CoordinationUnavailable> {
        let (key, failure) = (Arc::from(key), Failure::default());
        self.in_time(&key, pin!(self.try_take(&key, &failure)), &failure).await
    }

    async fn acquire_lock_fenced(
        &self,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Fence>, CoordinationUnavailable> {
        let lane = self.lane(key);
        // A bucket that nobody has a session in knows of no locks.
        let wait = self.inner.shared.config.command_timeout() * 2;
        match before(self.usable(lane), self.inner.shared.clock.sleep(wait)).await {
            Some(session) => session?,
            None => return Err(self.why_unopened(lane).unwrap_or_else(|| timeout(wait))),
        };
        let wire = &self.inner.shared.wire;
        let answer = wire.lock_acquire(&lane.bucket, key, token, ttl).await;
        match self.open(lane, answer)? {
            Locking::Acquired(fence) => {
                lane.saw(fence);
                Ok(Some(fence))
            }
            Locking::Busy { .. } | Locking::Unopened => Ok(None),
        }
    }

    async fn renew_lock(
        &self,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Fence>, CoordinationUnavailable> {
        let lane = self.lane(key);
        let wire = &self.inner.shared.wire;
        self.open(lane, wire.lock_renew(&lane.bucket, key, token, ttl).await)
    }

    async fn release_lock(&self, key: &str, token: &str) -> Result<bool, CoordinationUnavailable> {
        let lane = self.lane(key);
        let wire = &self.inner.shared.wire;
        self.open(lane, wire.lock_release(&lane.bucket, key, token).await)
    }

    fn margin(&self) -> Duration {
        self.inner.shared.margin
    }

    fn last_beat(&self) -> Option<Duration> {
        self.inner.shared.last_beat()
    }

    fn raise_floor(&self, floor: Fence) {
        self.inner.shared.lanes().for_each(|lane| lane.saw(floor));
    }

    fn trouble(&self, about: Trouble) -> Option<Arc<StoreError>> {
        self.inner.shared.trouble(about)
    }

    async fn close(&self) {
        let shared = &self.inner.shared;
        shared.finish(LeaseLostReason::Released);
        shared.stopped.cancelled().await;
        shared.served.cancelled().await;
    }
}

/// A ticket on the server. Dropping it gives it back.
struct Claim {
    inner: Arc<Inner>,
    session: Arc<Session>,
    key: Arc<str>,
    seq: u64,
    is_left: AtomicBool,
    left: CancellationToken,
}

impl Claim {
    /// `None` if the session has ended.
    fn new(inner: &Arc<Inner>, session: &Arc<Session>, key: &Arc<str>) -> Option<Self> {
        Some(Self {
            seq: session.begin(key)?,
            inner: Arc::clone(inner),
            session: Arc::clone(session),
            key: Arc::clone(key),
            is_left: AtomicBool::new(false),
            left: CancellationToken::new(),
        })
    }

    /// The turn that was granted to it.
    fn turn(self, fence: Fence, grant: Grant) -> Turn {
        let session = self.session.id.clone();
        let given_back = grant.previous.as_ref().is_none_or(|previous| previous.given_back);
        let previous = grant.previous.map(|previous| previous.session);
        Turn::new(fence, session, previous, Arc::new(RedisTurn { claim: self, given_back }))
    }

    /// It was not taken.
    fn forget(self) {
        self.is_left.store(true, Ordering::SeqCst);
        self.session.forget(self.seq);
    }

    fn leave(&self, leaving: Leaving) {
        if self.is_left.swap(true, Ordering::SeqCst) {
            return;
        }
        self.session.leave(self.seq, leaving);
        self.left.cancel();
        // The tickets of a session that ended are given back with it.
        if self.session.end().is_none() {
            let (session, key) = (Arc::clone(&self.session), Arc::clone(&self.key));
            self.session.lane.job(Job::Leave { session, key, seq: self.seq, leaving });
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.leave(Leaving::Unused);
    }
}

enum Place {
    Waiting(oneshot::Receiver<Grant>),
    Head(Grant),
    Gone,
}

struct RedisTicket {
    fence: Fence,
    claim: Option<Claim>,
    place: Place,
    /// When the wait ends.
    until: Duration,
}

/// What comes first: the outcome, or the end of the time.
async fn before<T>(work: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = end => None,
    }
}

#[async_trait]
impl TicketHandle for RedisTicket {
    async fn granted(&mut self) -> Result<Turn, CoordinationUnavailable> {
        let Some(claim) = &self.claim else { return Err(ended()) };
        let shared = &claim.inner.shared;
        if let Place::Waiting(waiting) = &mut self.place {
            let left = self.until.saturating_sub(shared.clock.monotonic());
            self.place = match before(waiting, shared.clock.sleep(left)).await {
                Some(granted) => granted.map_or(Place::Gone, Place::Head),
                None => {
                    let wait = shared.config.turn_wait;
                    self.claim = None;
                    self.place = Place::Gone;
                    return Err(timeout(wait));
                }
            };
        }
        let Place::Head(grant) = std::mem::replace(&mut self.place, Place::Gone) else { return Err(ended()) };
        let Some(claim) = self.claim.take() else { return Err(ended()) };
        if claim.inner.shared.check(&claim.session).is_err() {
            return Err(ended());
        }
        Ok(claim.turn(self.fence, grant))
    }
}

struct RedisTurn {
    claim: Claim,
    given_back: bool,
}

impl Drop for RedisTurn {
    fn drop(&mut self) {
        self.abandon();
    }
}

#[async_trait]
impl TurnHandle for RedisTurn {
    fn check(&self) -> Result<(), LeaseLost> {
        if self.claim.is_left.load(Ordering::SeqCst) {
            return Err(LeaseLost { reason: LeaseLostReason::Released });
        }
        self.claim.inner.shared.check(&self.claim.session)
    }

    async fn confirm(&self) -> Result<(), LeaseLost> {
        let (shared, session) = (&self.claim.inner.shared, &self.claim.session);
        loop {
            let mut sure = pin!(session.sure.notified());
            sure.as_mut().enable();
            // In this order: a loss is noted before the doubt is cleared up.
            let is_sure = session.is_sure();
            self.check()?;
            if is_sure {
                return Ok(());
            }
            tokio::select! {
                () = sure => {}
                () = self.claim.left.cancelled() => {}
                () = session.ended.cancelled() => {}
                () = shared.clock.sleep(session.valid_until().saturating_sub(shared.clock.monotonic())) => {}
            }
        }
    }

    async fn lost(&self) -> LeaseLost {
        loop {
            if let Err(lost) = self.check() {
                return lost;
            }
            tokio::select! {
                () = self.claim.left.cancelled() => {}
                () = self.claim.session.ended.cancelled(), if keeps!(self.claim.inner.shared.config, ToldLosses) => {}
            }
        }
    }

    fn release(&self) {
        self.claim.leave(Leaving::Done);
    }

    fn abandon(&self) {
        self.claim.leave(Leaving::Abandoned);
    }

    fn was_given_back(&self) -> bool {
        self.given_back
    }
}
