use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;

use crate::core::coordinator::Fence;
use crate::core::error::LeaseLostReason;
use crate::core::id::{ChatId, ConversationKey, SendKey};
use crate::core::notice::Notice;
use crate::core::time::{Clock, Timestamp};
use crate::handover::HandoverOutcome;

/// How many events a slow listener may be behind before it misses the oldest.
const CAPACITY: usize = 1024;

/// Which journal a dead letter lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadKind {
    /// An inbound event.
    Inbound,
    /// A send.
    Outbound,
}

/// What happens in a bot and is worth telling an operator. One event for each change, not for each retry.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BotEvent {
    /// The journals are open, unfinished work is queued again, and the channel is being connected.
    Started,
    /// Everything in flight is finished or released.
    Stopped,
    /// A handler or a hook failed, or a backend did. What fails again and again is told once, until it
    /// [works again](Self::Recovered).
    Error {
        /// Where.
        context: String,
        /// What happened.
        error: String,
    },
    /// A record was given up.
    Dead {
        /// Which journal it lies in.
        kind: DeadKind,
        /// Its id or key.
        id: String,
        /// Why.
        error: String,
    },
    /// The journals cannot be used. Until they can, no message is taken over unless `fail_open`, and what is under way waits.
    JournalUnavailable {
        /// Why.
        error: String,
    },
    /// The journals can be used again.
    JournalAvailable {
        /// How many calls of the backend failed.
        failures: u64,
        /// How long it was so.
        after: Duration,
    },
    /// The channel lost its connection, or could not connect. It is tried again.
    ChannelUnavailable {
        /// Why.
        error: String,
    },
    /// The channel told something that is no event of a chat. It is not journaled, and may be told by each replica.
    Notice(Notice),
    /// A chat or a user goes on under another id: a group became a supergroup, somebody changed their number. What is kept of it
    /// stays under the first id. Told by the replica that recorded it.
    Moved {
        /// The first id, by which the bot goes on calling it.
        chat: ChatId,
        /// The new id, to which its messages go.
        address: ChatId,
    },
    /// The channel is connected again.
    ChannelAvailable {
        /// How many tries failed.
        failures: u64,
        /// How long it was so.
        after: Duration,
    },
    /// Dead letters and sends of unknown outcome are older than `dead_retention` and are being removed from now on. Told
    /// once an hour at most.
    PurgingDead {
        /// Inbound events.
        inbound: usize,
        /// Sends that were given up.
        outbound: usize,
        /// Sends of unknown outcome.
        unknown: usize,
        /// Whether one of them is only counted in part.
        at_least: bool,
        /// What reached its state before this is removed.
        before: Timestamp,
    },
    /// What an [`Error`](Self::Error) told works again.
    Recovered {
        /// Where.
        context: String,
        /// How often it had failed.
        failures: u64,
    },
    /// A send's outcome is unknown and the channel could not resolve it; the policy decided.
    Ambiguous {
        /// The send.
        key: SendKey,
        /// Its chat.
        chat: ChatId,
        /// Whether it is sent again.
        resent: bool,
    },
    /// A send of unknown outcome, told as [`Ambiguous`](Self::Ambiguous) before, had arrived: the channel showed it.
    Resolved {
        /// The send.
        key: SendKey,
        /// Its chat.
        chat: ChatId,
    },
    /// This process stood still or lost its backend for longer than a lease. Until it can renew it, it begins no handler
    /// and does not call the channel.
    InstanceLeaseLost {
        /// Why.
        reason: LeaseLostReason,
    },
    /// The lease that was lost is held again; nobody took this process's place.
    InstanceLeaseRenewed,
    /// Another process took this one's place: it started under this instance id, or took over everything after the lease
    /// ran out. This one takes nothing new and ends.
    Superseded {
        /// The instance id.
        instance: String,
    },
    /// A turn was lost; what the handler did afterwards was refused.
    LeaseLost {
        /// The conversation.
        key: ConversationKey,
        /// Why.
        reason: String,
    },
    /// This replica leads: it connects the channel.
    Leader {
        /// What it leads, such as `provider:telegram`.
        name: String,
        /// The number of the leadership; it grows from leader to leader.
        fence: Fence,
        /// This replica.
        replica: String,
    },
    /// This replica stands by: it does not use the channel.
    Follower {
        /// What it does not lead.
        name: String,
        /// Why.
        reason: FollowerReason,
        /// This replica.
        replica: String,
    },
    /// The leadership came back to this replica, and its channel is still down: no replica can connect. Told once, until the
    /// channel opens here.
    LeaderUnhealthy {
        /// What nobody leads.
        name: String,
        /// How often this replica has given it back since its channel was open.
        step_downs: u32,
        /// This replica.
        replica: String,
    },
    /// The channel ended this replica's session, as when a person removes the device it is paired with. It stands by until
    /// somebody gave it a new session and called [`Bot::logged_in`](crate::Bot::logged_in), or started it again.
    LoggedOut {
        /// What it does not campaign for.
        name: String,
        /// What the channel said.
        error: String,
        /// This replica.
        replica: String,
    },
    /// How far a broadcast is: told by each replica that sends for it, every 10 s while it does, and at its end.
    Broadcast {
        /// Its name.
        id: String,
        /// The sends that are still to come; 0 at the end.
        waiting: usize,
        /// Those that were given up.
        dead: usize,
    },
    /// Another replica has the same id, or had it and is not known to be dead after a minute. Both work; events and logs do
    /// not tell them apart.
    ReplicaIdTaken {
        /// The id.
        replica: String,
    },
    /// The store does not compare checkpoints before it writes them; told once at the start. A replica that stood still for
    /// longer than its lease may write over a newer checkpoint, between a look at its turn and the write.
    CheckpointsNotCompared,
    /// A conversation that another replica had came to this one.
    Handover {
        /// The conversation.
        key: ConversationKey,
        /// Its name.
        name: String,
        /// What became of it.
        outcome: HandoverOutcome,
    },
    /// A stored flow could not go on: its state does not load or its step is gone.
    FlowIncompatible {
        /// The conversation.
        key: ConversationKey,
        /// The flow.
        flow: String,
        /// What did not fit.
        reason: String,
    },
    /// A conversation in memory was given up for another one, because `turns.max_live_conversations` wait already. Its step
    /// begins again with the next message, or it is interrupted if it has no steps.
    ConversationDropped {
        /// The conversation.
        key: ConversationKey,
        /// Its name.
        name: String,
    },
    /// The time of occurrences of a task had gone by when they were found.
    TaskMissed {
        /// The task.
        task: String,
        /// The id of what was put down; `None` if the task is repeated.
        id: Option<String>,
        /// When the earliest of them was to run.
        scheduled: Timestamp,
        /// How many of them do not run; at most about 1,000 are counted.
        missed: u32,
        /// The one that runs, late or in place of the others; `None` if none does.
        runs: Option<Timestamp>,
    },
    /// A wait of a flow ran out.
    FlowTimeout {
        /// The conversation.
        key: ConversationKey,
        /// The flow.
        flow: String,
    },
}

/// Why a replica does not lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowerReason {
    /// Another one leads.
    StandingBy,
    /// Its channel was down for too long: it gave the leadership back, and stands behind the others.
    ChannelDown,
    /// It lost the leadership, and its channel was cut.
    LeaseLost(LeaseLostReason),
    /// The channel closed its connection because somebody else is connected with the same credentials: it gave the leadership
    /// back, and does not campaign for at least 30 s.
    Conflict,
    /// The channel ended its session: it gave the leadership back, and does not campaign until
    /// [`Bot::logged_in`](crate::Bot::logged_in).
    LoggedOut,
}

impl BotEvent {
    /// The event's name, as in the documentation.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::Error { .. } => "error",
            Self::Dead { .. } => "durability:dead",
            Self::Ambiguous { .. } => "durability:ambiguous",
            Self::JournalUnavailable { .. } => "durability:unavailable",
            Self::JournalAvailable { .. } => "durability:available",
            Self::PurgingDead { .. } => "durability:purging-dead",
            Self::ChannelUnavailable { .. } => "channel:unavailable",
            Self::ChannelAvailable { .. } => "channel:available",
            Self::Notice(Notice::Receipt(_)) => "provider:receipt",
            Self::Notice(Notice::FromMe { .. }) => "provider:from-me",
            Self::Notice(Notice::Watched(_)) => "provider:watched",
            Self::Notice(Notice::Account { .. }) => "provider:account",
            Self::Notice(_) => "provider:error",
            Self::Moved { .. } => "chat:moved",
            Self::Recovered { .. } => "recovered",
            Self::Resolved { .. } => "durability:resolved",
            Self::InstanceLeaseLost { .. } => "durability:lease-lost",
            Self::InstanceLeaseRenewed => "durability:lease-renewed",
            Self::Superseded { .. } => "durability:superseded",
            Self::LeaseLost { .. } => "coordination:lease-lost",
            Self::Leader { .. } => "coordination:leader",
            Self::Follower { .. } => "coordination:follower",
            Self::LeaderUnhealthy { .. } => "coordination:leader-unhealthy",
            Self::LoggedOut { .. } => "coordination:logged-out",
            Self::Broadcast { waiting: 0, .. } => "broadcast:done",
            Self::Broadcast { .. } => "broadcast:progress",
            Self::ReplicaIdTaken { .. } => "coordination:replica-id-taken",
            Self::CheckpointsNotCompared => "coordination:checkpoints-not-compared",
            Self::Handover { .. } => "coordination:handover",
            Self::FlowIncompatible { .. } => "flow:incompatible",
            Self::ConversationDropped { .. } => "conversation:dropped",
            Self::FlowTimeout { .. } => "flow:timeout",
            Self::TaskMissed { .. } => "scheduler:missed",
        }
    }
}

impl fmt::Display for BotEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Started | Self::Stopped | Self::InstanceLeaseRenewed => Ok(()),
            Self::CheckpointsNotCompared => f.write_str(
                ": the store cannot compare checkpoints; use one that can, such as those of botmesh",
            ),
            Self::Leader { name, fence, replica } => {
                write!(f, " {name}, fence {}, replica {replica}", fence.0)
            }
            Self::Follower { name, reason, replica } => write!(f, " {name}: {reason:?}, replica {replica}"),
            Self::LeaderUnhealthy { name, step_downs, replica } => {
                write!(f, " {name}: given back {step_downs} times, replica {replica}")
            }
            Self::Broadcast { id, waiting, dead } => write!(f, " {id}: {waiting} to come, {dead} given up"),
            Self::LoggedOut { name, error, replica } => {
                write!(
                    f,
                    " {name}: pair replica {replica} again, then call `Bot::logged_in` or start it again: {error}"
                )
            }
            Self::ReplicaIdTaken { replica } => {
                write!(f, " {replica}: give each replica an id of its own, or none")
            }
            Self::InstanceLeaseLost { reason } => write!(f, " {reason:?}"),
            Self::Error { context, error } => write!(f, " {context}: {error}"),
            Self::Moved { chat, address } => write!(f, " {chat}: now {address}"),
            Self::Dead { kind, id, error } => write!(f, " {kind:?} {id}: {error}"),
            Self::JournalUnavailable { error } | Self::ChannelUnavailable { error } => write!(f, " {error}"),
            Self::JournalAvailable { failures, after } | Self::ChannelAvailable { failures, after } => {
                write!(f, " after {failures} failures in {after:.1?}")
            }
            Self::Recovered { context, failures } => write!(f, " {context}: after {failures} failures"),
            Self::Notice(notice) => write!(f, " {notice}"),
            Self::PurgingDead { inbound, outbound, unknown, at_least, before } => {
                let bound = if *at_least { "at least " } else { "" };
                write!(
                    f,
                    " {bound}{inbound} messages, {outbound} sends, {unknown} of unknown outcome; from before {before}"
                )
            }
            Self::Ambiguous { key, chat, resent } => write!(f, " {key} to {chat}, resent: {resent}"),
            Self::Resolved { key, chat } => write!(f, " {key} to {chat}"),
            Self::Superseded { instance } => write!(f, " {instance}"),
            Self::LeaseLost { key, reason } => write!(f, " {key}: {reason}"),
            Self::Handover { key, name, outcome } => write!(f, " {name} of {key}: {outcome:?}"),
            Self::FlowIncompatible { key, flow, reason } => write!(f, " {flow} of {key}: {reason}"),
            Self::ConversationDropped { key, name } => write!(f, " {name} of {key}"),
            Self::FlowTimeout { key, flow } => write!(f, " {flow} of {key}"),
            Self::TaskMissed { task, id, scheduled, missed, runs } => {
                let (slash, id) = id.as_deref().map_or(("", ""), |id| ("/", id));
                write!(f, " {task}{slash}{id} from {scheduled}: {missed} do not run, ")?;
                match runs {
                    Some(at) => write!(f, "the one of {at} does"),
                    None => write!(f, "none does"),
                }
            }
        }
    }
}

/// How many troubles are remembered; more are told each time.
const MAX_TROUBLES: usize = 1000;

/// A trouble that comes and goes is told again after this time at the earliest.
const QUIET: Duration = Duration::from_secs(60);

/// Tells listeners and the log.
#[derive(Clone)]
pub(crate) struct EventBus {
    listeners: broadcast::Sender<BotEvent>,
    troubles: Arc<Troubles>,
    clock: Arc<dyn Clock>,
}

/// What fails at the moment, or did.
#[derive(Debug, Default)]
struct Troubles {
    /// Spares the lock as long as nothing fails.
    any: AtomicBool,
    known: Mutex<HashMap<String, Trouble>>,
}

#[derive(Debug)]
struct Trouble {
    /// How often it has failed; 0 when it is over.
    failures: u64,
    is_told: bool,
    told_at: Duration,
}

impl EventBus {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { listeners: broadcast::Sender::new(CAPACITY), troubles: Arc::default(), clock }
    }

    pub(crate) fn emit(&self, event: BotEvent) {
        match &event {
            BotEvent::Started | BotEvent::Stopped => tracing::info!(event = event.name()),
            BotEvent::Notice(notice) if !notice.is_trouble() => {
                tracing::debug!(event = event.name(), "{event}");
            }
            BotEvent::JournalAvailable { .. }
            | BotEvent::ChannelAvailable { .. }
            | BotEvent::Leader { .. }
            | BotEvent::Follower { reason: FollowerReason::StandingBy, .. }
            | BotEvent::InstanceLeaseRenewed
            | BotEvent::Resolved { .. }
            | BotEvent::Handover { .. }
            | BotEvent::Broadcast { dead: 0, .. }
            | BotEvent::Recovered { .. } => tracing::info!(event = event.name(), "{event}"),
            event => tracing::warn!(event = event.name(), "{event}"),
        }
        // Nobody has to listen.
        let _ = self.listeners.send(event);
    }

    pub(crate) fn error(&self, context: impl Into<String>, error: &dyn std::error::Error) {
        self.failure(context, describe(error));
    }

    pub(crate) fn failure(&self, context: impl Into<String>, error: String) {
        self.emit(BotEvent::Error { context: context.into(), error });
    }

    /// Something failed that is tried again and again: told the first time, until it [is over](Self::over). One that comes and goes
    /// is told once a minute.
    pub(crate) fn trouble(&self, context: impl Into<String>, error: &dyn std::error::Error) {
        let (context, now) = (context.into(), self.clock.monotonic());
        let tells = {
            let mut known = self.troubles.known.lock().unwrap_or_else(PoisonError::into_inner);
            self.troubles.any.store(true, Ordering::Relaxed);
            if known.len() >= MAX_TROUBLES {
                known.retain(|_, trouble| trouble.failures > 0);
            }
            match known.get_mut(&context) {
                Some(trouble) => {
                    trouble.failures += 1;
                    let tells = !trouble.is_told && now >= trouble.told_at + QUIET;
                    if tells {
                        (trouble.is_told, trouble.told_at) = (true, now);
                    }
                    tells
                }
                None => {
                    if known.len() < MAX_TROUBLES {
                        known.insert(context.clone(), Trouble { failures: 1, is_told: true, told_at: now });
                    }
                    true
                }
            }
        };
        match tells {
            true => self.error(context, error),
            false => tracing::debug!(context, error = describe(error), "it failed again"),
        }
    }

    /// It works.
    pub(crate) fn over(&self, context: &str) {
        if !self.troubles.any.load(Ordering::Relaxed) {
            return;
        }
        let told = {
            let mut known = self.troubles.known.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(trouble) = known.get_mut(context).filter(|trouble| trouble.failures > 0) else { return };
            let failures = std::mem::take(&mut trouble.failures);
            let told = std::mem::take(&mut trouble.is_told).then_some(failures);
            let any = known.values().any(|trouble| trouble.failures > 0);
            self.troubles.any.store(any, Ordering::Relaxed);
            told
        };
        if let Some(failures) = told {
            self.emit(BotEvent::Recovered { context: context.to_owned(), failures });
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<BotEvent> {
        self.listeners.subscribe()
    }
}

/// An error with its causes in one line, as a person wants to read it.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
