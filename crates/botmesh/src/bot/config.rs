use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::backoff::Backoff;
use crate::core::error::ConfigError;
use crate::core::id::InstanceId;
use crate::core::journal::{KvDurability, Leases, OnAmbiguous};

/// Durable message processing: where the journals live and how they are used.
///
/// # Leases
/// A running process renews its leases by one write every third of the shorter one, on a thread and a connection of its
/// own: handlers, sends, commits and purges cannot delay it. While the leases are held, nobody touches what the process
/// owns, however long a handler or a call of the channel takes.
///
/// A process that stood still or lost its backend for longer than a lease notices by itself, before it does anything:
/// it begins no handler and does not call the channel, sends are refused with
/// [`SendError::LeaseLost`](crate::core::error::SendError::LeaseLost), and the event `durability:lease-lost` says so once.
/// Then:
///
/// - Its next renewal succeeds before another process took over everything: it goes on (`durability:lease-renewed`).
///   Messages that nobody took over are handled, those whose send was refused once more from the beginning; what
///   somebody took over is left to them and counted in `stale_leases`.
/// - Others took over everything and removed its session, or another process started under its instance id: it owns
///   nothing and never will again (`durability:superseded`), and [`Bot::run`](crate::Bot::run) ends with an error.
///
/// In files, durations are texts such as `"15s"` or whole milliseconds, and unknown fields are refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Durability {
    #[serde(skip)]
    pub(crate) backend: Option<KvDurability>,
    /// The name under which this process owns records: stable across restarts, unique among running processes. Default:
    /// host name, bot and connection; on a backend that processes can share, with a suffix of its own for each start, so
    /// that a restart waits for the old leases to run out.
    pub instance_id: Option<InstanceId>,
    /// Handle an event even if the inbox cannot be written. Default `false`: the event is refused, and the channel
    /// delivers it again. Replies to it go out directly if the outbox cannot be written either.
    pub fail_open: bool,
    /// How inbound events are processed.
    pub inbox: InboxConfig,
    /// How sends are made.
    pub outbox: OutboxConfig,
    /// How often the sweeper looks for what is due. Default 1 s.
    #[serde(with = "botmesh_core::duration")]
    pub poll: Duration,
    /// How long finished records are kept; 0 keeps them. At least as long as the channel may deliver an
    /// event again ([`Capabilities::redelivery`](botmesh_core::provider::Capabilities::redelivery)); an error event tells at
    /// the start if it is not. Default 7 days.
    #[serde(with = "botmesh_core::duration")]
    pub retention: Duration,
    /// How long dead letters and sends of unknown outcome are kept; 0 keeps them. Before they are removed,
    /// [`BotEvent::PurgingDead`](crate::BotEvent::PurgingDead) tells how many. Default 30 days.
    #[serde(with = "botmesh_core::duration")]
    pub dead_retention: Duration,
}

impl Default for Durability {
    fn default() -> Self {
        Self {
            backend: None,
            instance_id: None,
            fail_open: false,
            inbox: InboxConfig::default(),
            outbox: OutboxConfig::default(),
            poll: Duration::from_secs(1),
            retention: Duration::from_secs(7 * 24 * 3600),
            dead_retention: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// How inbound events are processed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InboxConfig {
    /// How long this process may be silent before others take over the messages that it handles or has queued; see
    /// [Leases](Durability#leases). Default 60 s, at least 20 ms.
    #[serde(with = "botmesh_core::duration")]
    pub lease: Duration,
    /// Attempts before an event is given up. Default 5.
    pub max_attempts: u32,
    /// Delays between attempts.
    pub backoff: Backoff,
    /// What becomes of an event whose handler fails. Default [`OnHandlerError::Ack`].
    pub on_handler_error: OnHandlerError,
    /// Keep media as a reference that the channel can build again before a message runs once more. Default `true`; `false`
    /// keeps the channel's tokens as they are, and then a message that runs again may be unable to download its media.
    pub media_refs: bool,
}

impl Default for InboxConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(60),
            max_attempts: 5,
            backoff: Backoff::default(),
            on_handler_error: OnHandlerError::Ack,
            media_refs: true,
        }
    }
}

/// What becomes of an event whose handler fails or panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnHandlerError {
    /// It is done: its side effects already happened.
    Ack,
    /// It is tried again with the inbox's backoff, and given up after its attempts.
    Retry,
    /// It goes to the dead letters at once.
    Dead,
}

/// How sends are made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutboxConfig {
    /// Retries after the first attempt. Default 5.
    pub retries: u32,
    /// Delays between attempts.
    pub backoff: Backoff,
    /// How long this process may be silent before others take over the sends that it has in flight; see
    /// [Leases](Durability#leases). Default 60 s, at least 20 ms.
    #[serde(with = "botmesh_core::duration")]
    pub lease: Duration,
    /// How long a send waits for its retries before it is left to the background. Default 15 s.
    #[serde(with = "botmesh_core::duration")]
    pub inline_max: Duration,
    /// What becomes of a send whose outcome nobody can say. Default [`OnAmbiguous::Skip`].
    pub on_ambiguous: OnAmbiguous,
    /// What becomes of a replay that sends something else under the same derived key. Default [`OnDiverged::Send`].
    pub on_diverged: OnDiverged,
    /// The largest content, as JSON, that goes through the outbox, if the backend takes it. Default 1 MiB.
    pub max_payload_bytes: usize,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        Self {
            retries: 5,
            backoff: Backoff::default(),
            lease: Duration::from_secs(60),
            inline_max: Duration::from_secs(15),
            on_ambiguous: OnAmbiguous::Skip,
            on_diverged: OnDiverged::Send,
            max_payload_bytes: 1 << 20,
        }
    }
}

/// What becomes of a replay that sends something else under the same derived key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDiverged {
    /// The new content is sent under a key of its own.
    Send,
    /// The send is answered from the recorded one.
    Skip,
}

impl Durability {
    /// Journals in `backend`, with defaults. Without a backend they live in memory: retries and dead letters, but
    /// nothing outlives the process.
    pub fn new(backend: impl Into<KvDurability>) -> Self {
        Self { backend: Some(backend.into()), ..Self::default() }
    }

    /// With another backend.
    #[must_use]
    pub fn with_backend(mut self, backend: impl Into<KvDurability>) -> Self {
        self.backend = Some(backend.into());
        self
    }

    /// With this instance id.
    #[must_use]
    pub fn with_instance_id(mut self, id: impl Into<InstanceId>) -> Self {
        self.instance_id = Some(id.into());
        self
    }

    /// With these inbox options.
    #[must_use]
    pub fn with_inbox(mut self, inbox: InboxConfig) -> Self {
        self.inbox = inbox;
        self
    }

    /// With these outbox options.
    #[must_use]
    pub fn with_outbox(mut self, outbox: OutboxConfig) -> Self {
        self.outbox = outbox;
        self
    }

    /// With this policy for sends whose outcome nobody can say.
    #[must_use]
    pub fn with_on_ambiguous(mut self, policy: OnAmbiguous) -> Self {
        self.outbox.on_ambiguous = policy;
        self
    }

    /// With this period of the sweeper.
    #[must_use]
    pub fn with_poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// With this retention of dead letters; 0 keeps them.
    #[must_use]
    pub fn with_dead_retention(mut self, retention: Duration) -> Self {
        self.dead_retention = retention;
        self
    }

    /// With this retention of what is done and sent; 0 keeps it.
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    pub(crate) fn leases(&self) -> Leases {
        Leases { messages: self.inbox.lease, sends: self.outbox.lease }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        const MIN_LEASE: Duration = Duration::from_millis(20);
        let refuse = |field: &str, problem: &str, fix: &str| {
            Err(ConfigError::new(format!("durability.{field}"), problem, fix))
        };
        for (field, lease) in [("inbox.lease", self.inbox.lease), ("outbox.lease", self.outbox.lease)] {
            if lease < MIN_LEASE {
                return refuse(field, "is below 20 ms", "set at least \"20ms\"; \"60s\" is the default");
            }
        }
        if self.inbox.max_attempts == 0 {
            return refuse("inbox.max_attempts", "is 0, so that no event would ever run", "set at least 1");
        }
        if self.poll.is_zero() {
            return refuse("poll", "is 0", "set at least \"1ms\"; \"1s\" is the default");
        }
        if self.outbox.max_payload_bytes == 0 {
            return refuse("outbox.max_payload_bytes", "is 0", "set at least 1; 1048576 is the default");
        }
        for (field, backoff) in
            [("inbox.backoff", &self.inbox.backoff), ("outbox.backoff", &self.outbox.backoff)]
        {
            if !(0.0..=1.0).contains(&backoff.jitter) {
                return refuse(field, "has a jitter outside 0 to 1", "set for example 0.2");
            }
            if backoff.base > backoff.cap {
                return refuse(field, "has a base above its cap", "raise `cap` or lower `base`");
            }
        }
        match &self.instance_id {
            Some(id) if id.as_str().is_empty() || id.as_str().len() > 512 => refuse(
                "instance_id",
                "is empty or longer than 512 bytes",
                "give a short name such as \"bot-1\"",
            ),
            _ => Ok(()),
        }
    }
}

/// How many messages are handled and held at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TurnsConfig {
    /// How many chats are handled at the same time. Default 512.
    pub max_concurrent: usize,
    /// How many messages may be taken over and unfinished; beyond it the channel waits. Default 4096.
    pub max_backlog: usize,
    /// How long a stop waits for running handlers before it releases their messages. Default 30 s.
    #[serde(with = "botmesh_core::duration")]
    pub stop_timeout: Duration,
    /// How long one message may keep a flow or a conversation running before it waits for its user again or ends. Then its
    /// code is stopped, its checkpoint stays, and the chat's turn is released. Longer than the longest step. Default 1 min.
    #[serde(with = "botmesh_core::duration")]
    pub settle: Duration,
    /// How many conversations may wait with their code in memory; beyond it the one that was silent for longest is given
    /// up. Flows that wait at an `ask` step are not among them. Default 100,000.
    pub max_live_conversations: usize,
}

impl Default for TurnsConfig {
    fn default() -> Self {
        Self {
            max_concurrent: 512,
            max_backlog: 4096,
            stop_timeout: Duration::from_secs(30),
            settle: Duration::from_secs(60),
            max_live_conversations: 100_000,
        }
    }
}

impl TurnsConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        for (field, value) in [("max_concurrent", self.max_concurrent), ("max_backlog", self.max_backlog)] {
            if value == 0 {
                return Err(ConfigError::new(
                    format!("turns.{field}"),
                    "is 0, so that no message would ever be handled",
                    "set at least 1",
                ));
            }
        }
        let refuse = |field: &str, fix: &str| {
            Err(ConfigError::new(
                format!("turns.{field}"),
                "is 0, so that no conversation could ever wait",
                fix,
            ))
        };
        if self.settle.is_zero() {
            return refuse("settle", "set at least \"1ms\"; \"1m\" is the default");
        }
        if self.max_live_conversations == 0 {
            return refuse("max_live_conversations", "set at least 1; 100000 is the default");
        }
        Ok(())
    }
}
