//! A replica within this process, behind a proxy of its own.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::coordinator::{Coordinator as _, Ticket, Turn};
use botmesh_core::error::{Cas, LeaseLost};
use botmesh_core::id::{ConversationKey, SessionId};
use botmesh_core::store::Store as _;
use botmesh_core::time::{Clock as _, SystemClock};
use botmesh_redis_store::{RedisConfig, RedisCoordinator, RedisStore};
use botmesh_test_servers::Proxy;
use tokio_util::sync::CancellationToken;

use super::Failure;
use super::stage::{Resource, Stage};
use crate::history::{Event, Recorder, now};

pub(super) const PREFIX: &str = "nemesis";

/// Between two writes of a holder.
const WRITES: Duration = Duration::from_millis(20);

pub(super) struct Actor {
    pub(super) name: &'static str,
    pub(super) proxy: Proxy,
    pub(super) coordinator: RedisCoordinator,
    pub(super) url: String,
    resource: Arc<Resource>,
    history: Recorder,
    clock: SystemClock,
    calls: AtomicU64,
    known: Mutex<HashSet<SessionId>>,
}

/// A call that waits.
pub(super) struct Waiting {
    chat: &'static str,
    call: u64,
    ticket: Ticket,
}

/// A turn.
pub(super) struct Held {
    chat: &'static str,
    call: u64,
    turn: Turn,
}

impl Actor {
    pub(super) async fn start(stage: &Stage, name: &'static str) -> Result<Self, Failure> {
        let proxy = Proxy::start_for_redis(stage.redis.address())?;
        let connection = RedisConfig::default().with_prefix(PREFIX);
        let url = stage.redis.url_at(proxy.address());
        let coordinator = RedisCoordinator::connect_with(&url, connection, stage.config()).await?;
        let actor = Self {
            name,
            proxy,
            coordinator,
            url,
            resource: Arc::clone(&stage.resource),
            history: Recorder::create(&stage.folder, name)?,
            clock: SystemClock::new(),
            calls: AtomicU64::new(0),
            known: Mutex::default(),
        };
        actor.history.record(Event::Up { sid: actor.coordinator.session().to_string() });
        Ok(actor)
    }

    fn saw(&self, session: &SessionId) {
        if self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(session.clone()) {
            self.history.record(Event::Session { sid: session.to_string(), epoch: None });
        }
    }

    /// Takes a ticket.
    pub(super) async fn enter(&self, chat: &'static str) -> Result<Waiting, Failure> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.enter_after(chat, call, None).await
    }

    async fn enter_after(
        &self,
        chat: &'static str,
        call: u64,
        after: Option<u64>,
    ) -> Result<Waiting, Failure> {
        self.history.record(Event::EnterCall { chat: chat.into(), call, after });
        match self.coordinator.enter(chat).await {
            Ok(ticket) => {
                self.history.record(Event::EnterOk { chat: chat.into(), call, n: ticket.fence().0 });
                Ok(Waiting { chat, call, ticket })
            }
            Err(error) => Err(self.refused(chat, call, error)),
        }
    }

    fn refused(&self, chat: &str, call: u64, error: impl Into<Failure>) -> Failure {
        let error = error.into();
        self.history.record(Event::EnterErr { chat: chat.into(), call, error: error.to_string() });
        error
    }

    /// Takes two tickets, one call right after the other.
    pub(super) async fn enter_twice(&self, chat: &'static str) -> Result<(Waiting, Waiting), Failure> {
        let call = self.calls.fetch_add(2, Ordering::Relaxed);
        let calls = (self.enter_after(chat, call, None), self.enter_after(chat, call + 1, Some(call)));
        // Polled in this order.
        let (first, second) = tokio::join!(biased; calls.0, calls.1);
        Ok((first?, second?))
    }

    /// Waits for the turn.
    pub(super) async fn granted(&self, waiting: Waiting) -> Result<Held, Failure> {
        let Waiting { chat, call, mut ticket } = waiting;
        let turn = match ticket.granted().await {
            Ok(turn) => turn,
            Err(error) => return Err(self.refused(chat, call, error)),
        };
        self.saw(turn.session());
        let held = Held { chat, call, turn };
        if let Err(lost) = held.turn.check() {
            self.lost(&held, lost);
            return Err("the turn was lost before it began".into());
        }
        let (sid, prev) =
            (held.turn.session().to_string(), held.turn.previous_holder().map(ToString::to_string));
        let n = held.turn.fence().0;
        self.history.record(Event::Granted { chat: chat.into(), call, n, sid, prev });
        Ok(held)
    }

    /// Takes a ticket and waits for the turn, but not for ever. A ticket that was lost is taken again.
    pub(super) async fn take(&self, chat: &'static str, patience: Duration) -> Result<Option<Held>, Failure> {
        let until = self.clock.monotonic() + patience;
        loop {
            let waiting = self.enter(chat).await?;
            let call = waiting.call;
            let left = until.saturating_sub(self.clock.monotonic());
            tokio::select! {
                biased;
                held = self.granted(waiting) => if let Ok(held) = held { return Ok(Some(held)) },
                () = async {
                    self.clock.sleep(left).await;
                    self.history.record(Event::Cancelled { chat: chat.into(), call });
                } => return Ok(None),
            }
        }
    }

    pub(super) fn cancel(&self, waiting: Waiting) {
        self.history.record(Event::Cancelled { chat: waiting.chat.into(), call: waiting.call });
        drop(waiting.ticket);
    }

    /// A call that is given up while its request is under way.
    pub(super) fn abandon(&self, chat: &str) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.history.record(Event::EnterCall { chat: chat.into(), call, after: None });
        self.history.record(Event::Cancelled { chat: chat.into(), call });
    }

    /// Writes again and again until it is enough or the turn is lost, and gives the turn back.
    pub(super) async fn hold(&self, held: Held, enough: &CancellationToken) {
        loop {
            if !self.write(&held) {
                return;
            }
            tokio::select! {
                biased;
                lost = held.turn.lost() => return self.lost(&held, lost),
                () = enough.cancelled() => return self.release(held),
                () = self.clock.sleep(WRITES) => {}
            }
        }
    }

    /// Does nothing until it is enough or the turn is lost, and gives the turn back.
    pub(super) async fn listen(&self, held: Held, enough: &CancellationToken) {
        tokio::select! {
            biased;
            lost = held.turn.lost() => self.lost(&held, lost),
            () = enough.cancelled() => self.release(held),
        }
    }

    /// Checks, and is about to write.
    pub(super) fn begin_write(&self, held: &Held) -> Result<(), Failure> {
        let checked_t = now();
        held.turn.check()?;
        let (chat, sid) = (held.chat.to_owned(), held.turn.session().to_string());
        let n = held.turn.fence().0;
        self.history.record(Event::WriteCall { chat, n, sid, checked_t, valid_for_ms: None });
        Ok(())
    }

    /// The write arrives at the store, as the next checkpoint of the chat.
    pub(super) async fn end_write(&self, held: &Held, store: &RedisStore) -> Result<(), Failure> {
        let key = ConversationKey::private(held.chat);
        let checkpoint = serde_json::from_value(serde_json::json!({
            "flow": "nemesis", "version": 1, "fingerprint": "", "step": "", "phase": "waiting", "state": null,
        }))?;
        let last = store.checkpoint(&key).await?.map(|last| last.revision);
        let written = store.set_checkpoint(&held.turn, &key, last, &checkpoint).await?;
        let (chat, sid) = (held.chat.to_owned(), held.turn.session().to_string());
        let (n, accepted) = (held.turn.fence().0, matches!(written, Cas::Applied(_)));
        self.resource.record(Event::Write { chat, n, sid, accepted });
        Ok(())
    }

    /// Writes, if the turn is still there.
    fn write(&self, held: &Held) -> bool {
        let (checked_t, n, chat) = (now(), held.turn.fence().0, held.chat.to_owned());
        if let Err(lost) = held.turn.check() {
            self.lost(held, lost);
            return false;
        }
        let sid = held.turn.session().to_string();
        let written = Event::WriteCall { chat, n, sid: sid.clone(), checked_t, valid_for_ms: None };
        self.history.record(written);
        self.resource.write(held.chat, n, &sid);
        true
    }

    fn lost(&self, held: &Held, lost: LeaseLost) {
        self.history.record(Event::Lost {
            sid: held.turn.session().to_string(),
            chat: Some(held.chat.into()),
            call: Some(held.call),
            n: Some(held.turn.fence().0),
            reason: format!("{:?}", lost.reason),
        });
    }

    pub(super) fn release(&self, held: Held) {
        if let Err(lost) = held.turn.check() {
            return self.lost(&held, lost);
        }
        let (chat, call, n) = (held.chat.to_owned(), held.call, held.turn.fence().0);
        self.history.record(Event::Released { chat, call, n });
        held.turn.release();
        drop(held);
    }

    /// Ends cleanly.
    pub(super) async fn close(&self) {
        self.coordinator.close().await;
        self.history.record(Event::Down { clean: true });
    }
}
