//! The channel of a process that may crash.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use botmesh_core::error::{ChannelError, MediaUnavailable};
use botmesh_core::id::{ChatId, EventId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::media::{MediaRef, StoredMediaRef};
use botmesh_core::notice::Moved;
use botmesh_core::provider::{
    AdmitError, Admitted, Capabilities, ConnectionState, InboundSink, Provider, Resolution, SendReceipt,
    SendRequest,
};
use botmesh_core::{Bytes, CancellationToken};
use tokio::sync::watch;

use crate::Crash;

/// A channel whose process may crash: what a dead process calls never reaches anybody and never returns. The channel below
/// stays usable by the next process.
#[derive(Clone)]
pub struct CrashableProvider {
    inner: Arc<dyn Provider>,
    process: Crash,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    sends: u64,
    before: Option<u64>,
    after: Option<u64>,
}

impl CrashableProvider {
    /// The channel `inner` as `process` sees it. Until told otherwise, it does just what `inner` does.
    pub fn new(inner: Arc<dyn Provider>, process: Crash) -> Self {
        Self { inner, process, plan: Arc::default() }
    }

    /// The process dies right before the `nth` call of `send` from now on, counted from 1: nothing is delivered.
    pub fn crash_before_send(&self, nth: u64) {
        let mut plan = self.lock();
        plan.before = Some(plan.sends + nth);
    }

    /// The process dies right after the `nth` call of `send` from now on, counted from 1: what the channel delivered, it
    /// never hears of.
    pub fn crash_after_send(&self, nth: u64) {
        let mut plan = self.lock();
        plan.after = Some(plan.sends + nth);
    }

    /// How many sends were called.
    pub fn sends(&self) -> u64 {
        self.lock().sends
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` unless the process is dead, or dies meanwhile: then it never returns.
    async fn while_alive<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.process.wait() => std::future::pending().await,
            value = work => value,
        }
    }
}

#[async_trait]
impl Provider for CrashableProvider {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn username(&self) -> Option<String> {
        self.inner.username()
    }

    fn may_move(&self, id: &str) -> bool {
        self.inner.may_move(id)
    }

    fn is_alias(&self, id: &str) -> bool {
        self.inner.is_alias(id)
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.inner.connection()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        let sink = Arc::new(CrashableSink { inner: sink, process: self.process.clone() });
        self.while_alive(self.inner.run(sink, stop)).await
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let (before, after) = {
            let mut plan = self.lock();
            plan.sends += 1;
            let now = Some(plan.sends);
            (plan.before == now, plan.after == now)
        };
        if before {
            self.process.now();
        }
        self.while_alive(async {
            let answer = self.inner.send(request).await;
            if after {
                self.process.now();
                std::future::pending::<()>().await;
            }
            answer
        })
        .await
    }

    async fn show_typing(&self, inbound: &Inbound) -> Result<(), ChannelError> {
        self.while_alive(self.inner.show_typing(inbound)).await
    }

    async fn resolve(&self, token: &SendKey, chat: &ChatId) -> Resolution {
        self.while_alive(self.inner.resolve(token, chat)).await
    }

    fn serialize_media(&self, media: &MediaRef) -> Option<StoredMediaRef> {
        self.inner.serialize_media(media)
    }

    fn rehydrate_media(&self, stored: &StoredMediaRef) -> Result<MediaRef, MediaUnavailable> {
        self.inner.rehydrate_media(stored)
    }

    async fn load_media(&self, media: &MediaRef, max_bytes: usize) -> Result<Bytes, ChannelError> {
        self.while_alive(self.inner.load_media(media, max_bytes)).await
    }
}

/// A dead process takes nothing over.
struct CrashableSink {
    inner: Arc<dyn InboundSink>,
    process: Crash,
}

#[async_trait]
impl InboundSink for CrashableSink {
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        tokio::select! {
            biased;
            () = self.process.wait() => Err(AdmitError::Stopping),
            admitted = self.inner.admit(inbound) => admitted,
        }
    }

    async fn poison(&self, event: EventId, raw: &[u8], problem: &str) -> Result<Admitted, AdmitError> {
        tokio::select! {
            biased;
            () = self.process.wait() => Err(AdmitError::Stopping),
            buried = self.inner.poison(event, raw, problem) => buried,
        }
    }

    async fn confirm_sent(&self, token: &SendKey, receipt: SendReceipt) -> Result<(), AdmitError> {
        tokio::select! {
            biased;
            () = self.process.wait() => Err(AdmitError::Stopping),
            confirmed = self.inner.confirm_sent(token, receipt) => confirmed,
        }
    }

    async fn moved(&self, moved: Moved) -> Result<(), AdmitError> {
        tokio::select! {
            biased;
            () = self.process.wait() => Err(AdmitError::Stopping),
            noted = self.inner.moved(moved) => noted,
        }
    }
}

impl fmt::Debug for CrashableProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashableProvider")
            .field("channel", &self.inner.id())
            .field("crashed", &self.process.happened())
            .finish_non_exhaustive()
    }
}
