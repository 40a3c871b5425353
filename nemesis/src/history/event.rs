//! What can happen in a run.

use serde::{Deserialize, Serialize};

/// What the replicas of a run were told, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The lease of a session.
    pub lease_ms: u64,
    /// How long before its lease runs out a session stops acting.
    pub margin_ms: u64,
    /// How long a queue without tickets is remembered.
    pub idle_ttl_ms: u64,
    /// How long a call waits for its turn.
    pub turn_wait_ms: u64,
}

/// What happened. A `call` names a call of one process: a message that wants its turn, from the first attempt to the end
/// of its turn. `n` is a fence, which is the number of the ticket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// Harness: the run begins.
    Start {
        /// What makes the run again.
        seed: u64,
        /// What the replicas were told.
        config: Config,
    },
    /// Harness: a fault begins or ends. What begins is written before, what ends after.
    Nemesis {
        /// Which.
        what: Fault,
        /// The replica that it hits; none if it hits the server, and so everybody.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// The process that it hits, if it hits one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target_pid: Option<u32>,
        /// For people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// When it ends by itself, on the clock of `t`. Without it, it lasts until it is ended ([`Fault::ends`]), or is over
        /// at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_t: Option<u64>,
    },
    /// Harness: all faults have been ended; from here on every wait must come to its end.
    Quiet,
    /// Harness: what the server has at the end, when every replica is idle or gone.
    Queues {
        /// Tickets in all queues.
        left: u64,
    },
    /// Harness: what the server did so far. Two of them with no fault between bound a time whose cost is checked.
    Usage {
        /// Calls of scripts.
        calls: u64,
        /// Keys that the server has.
        keys: u64,
    },
    /// Harness: the run is over.
    End,

    /// A thread of this process was to wake up at a certain time and was late: the machine was busy, or the process stopped.
    Late {
        /// By how many milliseconds.
        ms: u64,
    },
    /// The process runs and has its first session.
    Up {
        /// The session.
        sid: String,
    },
    /// The process has another session. It may have several at once: one for each part of a cluster.
    Session {
        /// The session.
        sid: String,
        /// What the server's data is called, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<String>,
    },
    /// The process learned that its session is over: with `call`, from a turn that it lost thereby.
    Lost {
        /// The session.
        sid: String,
        /// The chat whose turn was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chat: Option<String>,
        /// The call whose turn was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<u64>,
        /// The fence of the turn that was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        n: Option<u64>,
        /// As the coordinator names it.
        reason: String,
    },
    /// The process ends by itself.
    Down {
        /// Everything was given back.
        clean: bool,
    },

    /// A ticket is wanted.
    EnterCall {
        /// The chat.
        chat: String,
        /// The call.
        call: u64,
        /// The call of the same chat that this process made right before, if it surely made them in this order: the
        /// coordinator owes them the same order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
    },
    /// The ticket was taken.
    EnterOk {
        /// The chat.
        chat: String,
        /// The call.
        call: u64,
        /// The number.
        n: u64,
    },
    /// The call ended without a turn: `enter` or `granted` answered with an error.
    EnterErr {
        /// The chat.
        chat: String,
        /// The call.
        call: u64,
        /// The error.
        error: String,
    },
    /// The turn has begun, and its first check passed.
    Granted {
        /// The chat.
        chat: String,
        /// The call.
        call: u64,
        /// The fence.
        n: u64,
        /// The session that holds it.
        sid: String,
        /// The session that held the chat before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prev: Option<String>,
    },
    /// The call is given up before its turn, with or without a ticket.
    Cancelled {
        /// The chat.
        chat: String,
        /// The call.
        call: u64,
    },
    /// The turn is given back. Its check passes; if not, `lost` is written instead.
    Released {
        /// The chat.
        chat: String,
        /// The call.
        call: u64,
        /// The fence.
        n: u64,
    },
    /// A check of the turn failed; the process acts no more under it. `lost` is written besides.
    CheckFailed {
        /// The chat.
        chat: String,
        /// The call.
        call: u64,
        /// The fence.
        n: u64,
        /// As the coordinator names it.
        reason: String,
    },

    /// The check passed, and the process acts next.
    WriteCall {
        /// The chat.
        chat: String,
        /// The fence.
        n: u64,
        /// The session.
        sid: String,
        /// The time right before the check.
        checked_t: u64,
        /// How long the lease lets the session still act, in milliseconds, as computed after the check: the lease less the
        /// margin less the age of the last beat. None if the coordinator does not tell the age.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        valid_for_ms: Option<i64>,
    },
    /// The resource: what arrived, and whether it took it. It takes what has a larger fence than everything before, or the
    /// same one of the same session.
    Write {
        /// The chat.
        chat: String,
        /// The fence.
        n: u64,
        /// The session.
        sid: String,
        /// Whether it was taken.
        accepted: bool,
    },

    /// The process leads.
    Lead {
        /// What it leads.
        name: String,
        /// The fence.
        n: u64,
    },
    /// The process learned that it leads no more, or gave it back.
    LeadLost {
        /// What it led.
        name: String,
        /// The fence.
        n: u64,
    },
    /// The server of the transport: a connection of the leader with this fence has begun.
    TransportOpen {
        /// What is led.
        name: String,
        /// The fence.
        n: u64,
        /// The process at the other end.
        peer_pid: u32,
    },
    /// The server of the transport: that connection has ended.
    TransportClosed {
        /// What is led.
        name: String,
        /// The fence.
        n: u64,
        /// The process at the other end.
        peer_pid: u32,
    },
    /// The process works on something that its transport brought; it checked before that it leads.
    Frame {
        /// What it leads.
        name: String,
        /// The fence.
        n: u64,
        /// The time right before the check.
        checked_t: u64,
    },

    /// A message was handed to the bot's channel, and the bot has acknowledged it. Those of one chat are handed over one
    /// after the other.
    Message {
        /// The chat.
        chat: String,
        /// The message.
        id: u64,
    },
    /// A reply reached the provider.
    Reply {
        /// The chat.
        chat: String,
        /// The message that it answers.
        id: u64,
        /// The key under which it was sent; the same key again is the same reply.
        key: String,
    },
}

/// What the nemesis does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// SIGKILL of a process.
    Kill,
    /// SIGSTOP of a process.
    Stop,
    /// SIGCONT of a process.
    Cont,
    /// A process is asked to end: SIGTERM.
    Terminate,
    /// The connections of a replica end, and new ones are refused.
    Cut,
    /// The connections of a replica stay, and nothing passes.
    HalfOpen,
    /// What a replica sends is kept and arrives when it is healed.
    Hold,
    /// Everything of a replica takes longer.
    Delay,
    /// Pushes to a replica are lost, replies are not.
    DropPushes,
    /// Replies to a replica are lost.
    DropReplies,
    /// Everything of the replica's network is as it should be again; without a target, of every replica.
    Heal,
    /// The server drops its clients' connections.
    ClientKill,
    /// The server stops answering for a while.
    ClientPause,
    /// The server forgets its scripts.
    ScriptFlush,
    /// The server forgets its data.
    Flushall,
    /// The server is killed and comes back without data.
    RestartEmpty,
    /// The server is killed and comes back with what its file has, perhaps without the last second.
    RestartAof,
    /// The server stops (SIGSTOP) and goes on.
    ServerStop,
    /// The server goes on, or answers again.
    ServerBack,
    /// A replica of the server takes over, perhaps without the last writes.
    Promote,
    /// Two servers take writes, until [`SplitHealed`](Self::SplitHealed).
    Split,
    /// One server takes writes again.
    SplitHealed,
    /// A slot of the cluster moves.
    SlotMoved,
    /// The server has no memory left, until [`MemoryBack`](Self::MemoryBack).
    Oom,
    /// The server has memory again.
    MemoryBack,
    /// The wall clock of the server is set.
    Clock,
}

impl Fault {
    /// The faults that this one ends; empty if it is none that ends others.
    pub fn ends(self) -> &'static [Self] {
        match self {
            Self::Cont => &[Self::Stop],
            Self::Heal => {
                &[Self::Cut, Self::HalfOpen, Self::Hold, Self::Delay, Self::DropPushes, Self::DropReplies]
            }
            Self::ServerBack => &[Self::ServerStop, Self::ClientPause, Self::RestartAof, Self::RestartEmpty],
            Self::SplitHealed => &[Self::Split],
            Self::MemoryBack => &[Self::Oom],
            _ => &[],
        }
    }

    /// Whether the server may have forgotten what it had acknowledged, without telling its clients apart from before.
    pub fn loses_writes(self) -> bool {
        matches!(self, Self::RestartAof | Self::Promote | Self::Split)
    }

    /// Whether journals may have lost what they had acknowledged. A server that comes back from its file has it all: what is
    /// written there outlives its process.
    pub fn loses_records(self) -> bool {
        matches!(self, Self::Promote | Self::Split)
    }

    /// Whether the server has forgotten everything, which it tells its clients by another epoch.
    pub fn loses_data(self) -> bool {
        matches!(self, Self::Flushall | Self::RestartEmpty)
    }
}
