use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::core::coordinator::{Fence, Turn};
use crate::core::error::NotLeader;

/// Whether this replica may use the channel: always, or while it leads.
pub(crate) struct ChannelLead {
    /// The leadership, if it is held; `None` where every replica uses the channel.
    led: Option<watch::Sender<Option<Turn>>>,
    terms: AtomicU64,
    /// The channel ended this replica's session, and nobody has given it a new one.
    logged_out: watch::Sender<bool>,
}

impl ChannelLead {
    /// Every replica uses the channel.
    pub(crate) fn shared() -> Self {
        Self { led: None, terms: AtomicU64::new(0), logged_out: watch::Sender::new(false) }
    }

    /// Only the leader does.
    pub(crate) fn exclusive() -> Self {
        Self { led: Some(watch::Sender::new(None)), ..Self::shared() }
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.led.is_some()
    }

    /// Whether this replica may use the channel now. Asks nobody.
    pub(crate) fn check(&self) -> Result<(), NotLeader> {
        let Some(led) = &self.led else { return Ok(()) };
        match &*led.borrow() {
            Some(turn) if turn.check().is_ok() => Ok(()),
            _ => Err(NotLeader),
        }
    }

    /// Like [`check`](Self::check), after waiting while the coordinator is in doubt.
    pub(crate) async fn confirm(&self) -> Result<(), NotLeader> {
        let Some(led) = &self.led else { return Ok(()) };
        let turn = led.borrow().clone().ok_or(NotLeader)?;
        turn.confirm().await.map_err(|_| NotLeader)?;
        self.check()
    }

    pub(crate) fn may_call(&self) -> bool {
        self.check().is_ok()
    }

    /// The number of the leadership, if it is held.
    pub(crate) fn fence(&self) -> Option<Fence> {
        self.check().ok()?;
        self.led.as_ref()?.borrow().as_ref().map(Turn::fence)
    }

    /// How often it was won: what was found out before may not hold since.
    pub(crate) fn terms(&self) -> u64 {
        self.terms.load(Ordering::Relaxed)
    }

    pub(crate) fn won(&self, turn: Turn) {
        if let Some(led) = &self.led {
            self.terms.fetch_add(1, Ordering::Relaxed);
            led.send_replace(Some(turn));
        }
    }

    /// From now on the channel is not called. The leadership itself is the caller's to give back.
    pub(crate) fn resign(&self) -> Option<Turn> {
        self.led.as_ref()?.send_replace(None)
    }

    pub(crate) fn is_logged_out(&self) -> bool {
        *self.logged_out.borrow()
    }

    /// The channel ended this replica's session.
    pub(crate) fn log_out(&self) {
        self.logged_out.send_replace(true);
    }

    /// Somebody gave this replica a new session. Whether it needed one.
    pub(crate) fn log_in(&self) -> bool {
        self.logged_out.send_replace(false)
    }

    /// Returns when this replica has a session, as far as it knows. Cancel safe.
    pub(crate) async fn logged_in(&self) {
        // This value holds the sender.
        let _ = self.logged_out.subscribe().wait_for(|logged_out| !logged_out).await;
    }

    /// Returns when this replica may use the channel. Cancel safe.
    pub(crate) async fn held(&self) {
        if let Some(led) = &self.led {
            let mut changes = led.subscribe();
            // This value holds the sender.
            let _ = changes.wait_for(|turn| turn.as_ref().is_some_and(|turn| turn.check().is_ok())).await;
        }
    }
}
