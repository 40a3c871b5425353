//! A channel without a network.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, ErrorClass, MediaUnavailable, Phase};
use botmesh_core::id::{ChatId, MessageId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::media::{MediaRef, StoredMediaRef};
use botmesh_core::notice::Moved;
use botmesh_core::provider::{
    AdmitError, Admitted, Capabilities, ConnectionState, InboundSink, Provider, Resolution, Resolve,
    SendReceipt, SendRequest,
};
use botmesh_core::time::Timestamp;
use tokio::sync::watch;

use crate::media::Shelf;
use crate::transcript::{Line, SendOutcome, Sent, render};

/// How long a test may wait for something that should happen at once, in real time.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a mock channel does with one send.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendFault {
    /// Nothing is delivered; the caller gets this error.
    Fail(ChannelError),
    /// The message is delivered; the caller gets an error of [`Phase::Unknown`].
    LoseAnswer,
    /// The call stands still until [`MockProvider::release`], and is then delivered.
    Hang,
    /// The message is delivered at once, but the caller waits until [`MockProvider::release`], and then gets an error of
    /// [`Phase::Unknown`].
    HangAnswer,
}

/// A channel that records what it is told to send, and fails when told to. Clones share one channel, which outlives the
/// bot: a test hands it to the next bot after a crash.
#[derive(Clone)]
pub struct MockProvider {
    shared: Arc<Shared>,
    door: Arc<Door>,
}

/// Where one replica is connected.
struct Door {
    /// From 1.
    replica: usize,
    /// Whether a connection opens.
    reachable: AtomicBool,
    connection: watch::Sender<ConnectionState>,
    sink: watch::Sender<Option<Arc<dyn InboundSink>>>,
    /// Why the channel closes the connection.
    closing: watch::Sender<Option<ChannelError>>,
}

struct Shared {
    id: String,
    capabilities: Capabilities,
    moves: AtomicBool,
    shelf: Shelf,
    state: Mutex<State>,
    changes: watch::Sender<u64>,
    released: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    lines: Vec<Line>,
    sent: Vec<Sent>,
    typing: Vec<ChatId>,
    next_message: u64,
    faults: VecDeque<SendFault>,
    rule: Option<Rule>,
    /// Who is connected, in the order of connecting, and everybody who ever was.
    connected: Vec<usize>,
    connections: Vec<usize>,
    /// How often one connected while another one was.
    overlaps: usize,
}

type Rule = Box<dyn Fn(&Sent) -> Option<SendFault> + Send>;

impl MockProvider {
    /// A channel named `mock` that cannot say what became of a send whose answer was lost.
    pub fn new() -> Self {
        Self::with_capabilities(Capabilities::default())
    }

    /// A channel with this way to resolve lost answers. [`Resolve::Lookup`] looks up what was delivered,
    /// [`Resolve::Dedupe`] delivers each token once, whatever the window.
    pub fn with_resolve(resolve: Resolve) -> Self {
        let mut capabilities = Capabilities::default();
        capabilities.resolve = resolve;
        Self::with_capabilities(capabilities)
    }

    /// A channel with these capabilities.
    pub fn with_capabilities(capabilities: Capabilities) -> Self {
        let shared = Shared {
            id: "mock".to_owned(),
            capabilities,
            moves: AtomicBool::new(false),
            shelf: Shelf::default(),
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            released: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared), door: Arc::new(Door::new(1)) }
    }

    /// The same channel, whose ids [may move](Provider::may_move); those of digits alone are [aliases](Provider::is_alias).
    #[must_use]
    pub fn with_moves(self) -> Self {
        self.shared.moves.store(true, Ordering::Relaxed);
        self
    }

    /// Tells the bot that a chat or a user has another id since then, as the channel would. Waits until a bot runs.
    ///
    /// # Errors
    /// The bot did not record it.
    ///
    /// # Panics
    /// If no bot runs this provider within 30 s.
    pub async fn moves(
        &self,
        from: impl Into<ChatId>,
        to: impl Into<ChatId>,
        at: Timestamp,
    ) -> Result<(), AdmitError> {
        let moved = Moved { from: from.into(), to: to.into(), at: Some(at) };
        self.running_sink().await.moved(moved).await
    }

    /// The same channel, as the replica of this number is connected to it. What is delivered through this value reaches
    /// this replica alone, and what it sends bears its number. The value that `new` made is replica 1's.
    #[must_use]
    pub fn replica(&self, number: usize) -> Self {
        let door = match number == self.door.replica {
            true => Arc::clone(&self.door),
            false => Arc::new(Door::new(number)),
        };
        Self { shared: Arc::clone(&self.shared), door }
    }

    /// Delivers an event to the bot, as the channel would, and returns what the bot answered. Waits until a bot runs.
    ///
    /// # Errors
    /// The bot did not take the event over.
    ///
    /// # Panics
    /// If no bot runs this provider within 30 s.
    pub async fn deliver(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        let sink = self.running_sink().await;
        self.shared.lock().lines.push(Line::In(Box::new(inbound.clone())));
        sink.admit(inbound).await
    }

    /// Sends back every delivered message of `chat`, as a channel with [`Resolve::Echo`] does. Waits until a bot runs.
    ///
    /// # Errors
    /// The bot could not take an echo over.
    ///
    /// # Panics
    /// If no bot runs this provider within 30 s.
    pub async fn echo(&self, chat: &str) -> Result<(), AdmitError> {
        let sink = self.running_sink().await;
        for sent in self.delivered().into_iter().filter(|sent| sent.chat.as_str() == chat) {
            if let (Some(token), Some(receipt)) = (&sent.token, sent.receipt()) {
                sink.confirm_sent(token, receipt.clone()).await?;
            }
        }
        Ok(())
    }

    /// Hands an event to the bot that the channel cannot read. Waits until a bot runs.
    ///
    /// # Errors
    /// The bot did not take it over.
    ///
    /// # Panics
    /// If no bot runs this provider within 30 s.
    pub async fn poison(&self, event: &str, raw: &[u8], problem: &str) -> Result<Admitted, AdmitError> {
        self.running_sink().await.poison(event.into(), raw, problem).await
    }

    /// How often the bot showed this chat that it writes.
    pub fn shown_typing(&self, chat: &str) -> usize {
        self.shared.lock().typing.iter().filter(|shown| shown.as_str() == chat).count()
    }

    async fn running_sink(&self) -> Arc<dyn InboundSink> {
        let mut sinks = self.door.sink.subscribe();
        let sink = match patient(sinks.wait_for(Option::is_some)).await {
            Some(Ok(sink)) => sink.clone(),
            Some(Err(_)) | None => None,
        };
        sink.unwrap_or_else(|| panic!("no bot has run this provider within {PATIENCE:?}"))
    }

    /// Which replica this value is connected to.
    pub(crate) fn number(&self) -> usize {
        self.door.replica
    }

    pub(crate) fn name(&self) -> &str {
        &self.shared.id
    }

    pub(crate) fn shelf(&self) -> &Shelf {
        &self.shared.shelf
    }

    /// Makes the next send that has no fault yet fail with `error`.
    pub fn fail_next(&self, error: ChannelError) {
        self.fault_next(SendFault::Fail(error));
    }

    /// Delivers the next send that has no fault yet, but loses the answer.
    pub fn lose_answer_next(&self) {
        self.fault_next(SendFault::LoseAnswer);
    }

    /// Lets the next send that has no fault yet stand still until [`release`](Self::release).
    pub fn hang_next(&self) {
        self.fault_next(SendFault::Hang);
    }

    /// Gives the next send that has no fault yet this fault.
    pub fn fault_next(&self, fault: SendFault) {
        self.shared.lock().faults.push_back(fault);
    }

    /// Asks `rule` about every send that has no fault of its own. It sees the send as if it were delivered.
    pub fn fault_when(&self, rule: impl Fn(&Sent) -> Option<SendFault> + Send + 'static) {
        self.shared.lock().rule = Some(Box::new(rule));
    }

    /// Forgets every fault that has not happened yet.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        state.faults.clear();
        state.rule = None;
    }

    /// Whether this replica can connect. While it cannot, its connection is closed, and does not open when a bot runs it.
    pub fn set_reachable(&self, reachable: bool) {
        self.door.reachable.store(reachable, Ordering::Relaxed);
        match reachable && self.door.sink.borrow().is_some() {
            true => self.opened(),
            false => self.closed(),
        }
    }

    /// Ends this replica's connection with `error`, as a channel does that closes it. Nothing happens if no bot runs it.
    pub fn disconnect(&self, error: ChannelError) {
        if self.door.sink.borrow().is_some() {
            self.door.closing.send_replace(Some(error));
        }
    }

    /// The replicas that are connected now, in the order in which they connected.
    pub fn connected(&self) -> Vec<usize> {
        self.shared.lock().connected.clone()
    }

    /// Who connected so far, in order.
    pub fn connections(&self) -> Vec<usize> {
        self.shared.lock().connections.clone()
    }

    /// How often a replica connected while another one was connected.
    pub fn overlaps(&self) -> usize {
        self.shared.lock().overlaps
    }

    fn opened(&self) {
        let replica = self.door.replica;
        let opened = self.door.connection.send_replace(ConnectionState::Open) != ConnectionState::Open;
        if opened {
            let mut state = self.shared.lock();
            state.overlaps += usize::from(!state.connected.is_empty());
            state.connected.push(replica);
            state.connections.push(replica);
        }
    }

    fn closed(&self) {
        self.door.connection.send_replace(ConnectionState::Closed);
        self.shared.lock().connected.retain(|connected| *connected != self.door.replica);
    }

    /// Lets the sends go on that stand still now.
    pub fn release(&self) {
        self.shared.released.send_modify(|times| *times += 1);
    }

    /// Every call of `send` so far, in order.
    pub fn sent(&self) -> Vec<Sent> {
        self.shared.lock().sent.clone()
    }

    /// Looks at every call of `send` so far without copying them.
    pub(crate) fn view<T>(&self, look: impl FnOnce(&[Sent]) -> T) -> T {
        look(&self.shared.lock().sent)
    }

    /// What users see: the delivered messages, in order.
    pub fn delivered(&self) -> Vec<Sent> {
        self.shared.lock().sent.iter().filter(|sent| sent.is_delivery()).cloned().collect()
    }

    /// The texts that the user of `chat` sees, in order.
    pub fn texts_to(&self, chat: &str) -> Vec<String> {
        let state = self.shared.lock();
        let of_chat = state.sent.iter().filter(|sent| sent.is_delivery() && sent.chat.as_str() == chat);
        of_chat.map(|sent| sent.text().to_owned()).collect()
    }

    /// What was received and sent, for people.
    pub fn transcript(&self) -> String {
        let state = self.shared.lock();
        render(&state.lines, &state.sent)
    }

    /// Waits for `count` calls of `send` in all, and returns them.
    ///
    /// # Panics
    /// If they are not made within 30 s, with the transcript.
    pub async fn wait_for_sends(&self, count: usize) -> Vec<Sent> {
        self.wait("sends", count, |state| state.sent.len()).await;
        self.sent()
    }

    /// Waits until users see `count` messages in all, and returns them.
    ///
    /// # Panics
    /// If they are not delivered within 30 s, with the transcript.
    pub async fn wait_for_deliveries(&self, count: usize) -> Vec<Sent> {
        self.wait("deliveries", count, |state| state.sent.iter().filter(|sent| sent.is_delivery()).count())
            .await;
        self.delivered()
    }

    /// Waits until `count` sends stand still.
    ///
    /// # Panics
    /// If they do not within 30 s, with the transcript.
    pub async fn wait_for_hanging(&self, count: usize) {
        let hanging = |sent: &&Sent| sent.outcome == SendOutcome::Hanging;
        self.wait("hanging sends", count, move |state| state.sent.iter().filter(hanging).count()).await;
    }

    async fn wait(&self, what: &str, count: usize, have: impl Fn(&State) -> usize) {
        let mut changes = self.shared.changes.subscribe();
        let enough = patient(changes.wait_for(|_| have(&self.shared.lock()) >= count)).await.is_some();
        if !enough {
            let have = have(&self.shared.lock());
            panic!("{have} of {count} {what} after {PATIENCE:?}:\n{}", self.transcript());
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test that waits for ever shows nothing: this bound is real time"
)]
async fn patient<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(PATIENCE, future).await.ok()
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Records a call and decides what becomes of it; returns its place in the list, and its fault.
    fn record(&self, replica: usize, request: SendRequest<'_>) -> (usize, Option<SendFault>) {
        let mut state = self.lock();
        let mut sent = Sent {
            replica,
            chat: request.chat.clone(),
            content: request.content.clone(),
            token: request.token.cloned(),
            attempt: 1,
            outcome: SendOutcome::Delivered(SendReceipt { message: MessageId::from("") }),
        };
        let earlier = state.sent.iter().filter(|earlier| same_message(earlier, &sent)).count();
        sent.attempt = u32::try_from(earlier).unwrap_or(u32::MAX).saturating_add(1);
        let fault = state.faults.pop_front().or_else(|| state.rule.as_ref()?(&sent));
        sent.outcome = match &fault {
            Some(SendFault::Fail(error)) => SendOutcome::Failed(error.class, error.phase),
            Some(SendFault::Hang) => SendOutcome::Hanging,
            Some(SendFault::LoseAnswer | SendFault::HangAnswer) => match self.deliver(&mut state, &sent) {
                SendOutcome::Delivered(receipt) => SendOutcome::AnswerLost(receipt),
                known => known,
            },
            None => self.deliver(&mut state, &sent),
        };
        let place = state.sent.len();
        state.sent.push(sent);
        state.lines.push(Line::Out(place));
        (place, fault)
    }

    /// Gives the message an id, unless the channel remembers its token.
    fn deliver(&self, state: &mut State, sent: &Sent) -> SendOutcome {
        if matches!(self.capabilities.resolve, Resolve::Dedupe { .. })
            && let Some(receipt) = sent.token.as_ref().and_then(|token| state.receipt_of(token, &sent.chat))
        {
            return SendOutcome::Deduplicated(receipt);
        }
        state.next_message += 1;
        SendOutcome::Delivered(SendReceipt {
            message: MessageId::from(format!("mock-{}", state.next_message)),
        })
    }

    /// Delivers a send that stood still.
    fn go_on(&self, place: usize) -> SendOutcome {
        let mut state = self.lock();
        let sent = state.sent[place].clone();
        let outcome = self.deliver(&mut state, &sent);
        state.sent[place].outcome = outcome.clone();
        outcome
    }

    async fn stand_still(&self) {
        let mut released = self.released.subscribe();
        self.changed();
        let answered = released.changed().await;
        debug_assert!(answered.is_ok(), "the provider holds the sender");
    }
}

impl State {
    fn receipt_of(&self, token: &SendKey, chat: &ChatId) -> Option<SendReceipt> {
        let of_token = |sent: &&Sent| sent.token.as_ref() == Some(token) && sent.chat == *chat;
        self.sent.iter().filter(of_token).find_map(|sent| match &sent.outcome {
            SendOutcome::Delivered(receipt) | SendOutcome::AnswerLost(receipt) => Some(receipt.clone()),
            _ => None,
        })
    }
}

fn same_message(one: &Sent, other: &Sent) -> bool {
    match (&one.token, &other.token) {
        (Some(one), Some(other)) => one == other,
        _ => one.chat == other.chat && one.content == other.content,
    }
}

#[async_trait]
impl Provider for MockProvider {
    fn id(&self) -> &str {
        &self.shared.id
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    fn may_move(&self, _: &str) -> bool {
        self.shared.moves.load(Ordering::Relaxed)
    }

    fn is_alias(&self, id: &str) -> bool {
        self.may_move(id) && !id.is_empty() && id.bytes().all(|c| c.is_ascii_digit())
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.door.connection.subscribe()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        let _running = Running::new(self, sink);
        let mut closing = self.door.closing.subscribe();
        closing.mark_unchanged();
        tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            // This value holds the sender.
            _ = closing.changed() => self.door.closing.send_replace(None).map_or(Ok(()), Err),
        }
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let (place, fault) = self.shared.record(self.door.replica, request);
        let outcome = if matches!(fault, Some(SendFault::Hang)) {
            self.shared.stand_still().await;
            self.shared.go_on(place)
        } else {
            self.shared.lock().sent[place].outcome.clone()
        };
        if matches!(fault, Some(SendFault::HangAnswer)) {
            self.shared.stand_still().await;
        }
        self.shared.changed();
        match (fault, outcome) {
            (Some(SendFault::Fail(error)), _) => Err(error),
            (Some(SendFault::LoseAnswer | SendFault::HangAnswer), _) => Err(lost_answer()),
            (_, SendOutcome::Delivered(receipt) | SendOutcome::Deduplicated(receipt)) => Ok(receipt),
            (_, SendOutcome::AnswerLost(_) | SendOutcome::Failed(..) | SendOutcome::Hanging) => {
                Err(lost_answer())
            }
        }
    }

    async fn show_typing(&self, inbound: &Inbound) -> Result<(), ChannelError> {
        self.shared.lock().typing.push(inbound.address().clone());
        Ok(())
    }

    async fn resolve(&self, token: &SendKey, chat: &ChatId) -> Resolution {
        if self.shared.capabilities.resolve != Resolve::Lookup {
            return Resolution::Unknown;
        }
        self.shared.lock().receipt_of(token, chat).map_or(Resolution::NotSent, Resolution::Sent)
    }

    fn serialize_media(&self, media: &MediaRef) -> Option<StoredMediaRef> {
        self.shared.shelf.serialize(media)
    }

    fn rehydrate_media(&self, stored: &StoredMediaRef) -> Result<MediaRef, MediaUnavailable> {
        self.shared.shelf.rehydrate(&self.shared.id, stored)
    }

    async fn load_media(&self, media: &MediaRef, max_bytes: usize) -> Result<Bytes, ChannelError> {
        self.shared.shelf.load(media, max_bytes)
    }
}

fn lost_answer() -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Unknown, "the test lost the answer")
}

impl Door {
    fn new(replica: usize) -> Self {
        let (connection, sink) = (watch::Sender::new(ConnectionState::Closed), watch::Sender::new(None));
        let closing = watch::Sender::new(None);
        Self { replica, reachable: AtomicBool::new(true), connection, sink, closing }
    }
}

/// A bot runs the provider. Ends also when the bot is killed.
struct Running<'a> {
    channel: &'a MockProvider,
    sink: Arc<dyn InboundSink>,
}

impl<'a> Running<'a> {
    fn new(channel: &'a MockProvider, sink: Arc<dyn InboundSink>) -> Self {
        channel.door.sink.send_replace(Some(Arc::clone(&sink)));
        if channel.door.reachable.load(Ordering::Relaxed) {
            channel.opened();
        }
        Self { channel, sink }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let ended = self.channel.door.sink.send_if_modified(|sink| {
            let mine = sink.as_ref().is_some_and(|sink| Arc::ptr_eq(sink, &self.sink));
            if mine {
                *sink = None;
            }
            mine
        });
        if ended {
            self.channel.closed();
        }
    }
}

impl Default for MockProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MockProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockProvider").field("sends", &self.shared.lock().sent.len()).finish_non_exhaustive()
    }
}
