//! What a run of the model is about: the policy, the bounds, and the rule that is broken to test the checker itself.

use std::fmt;
use std::time::Duration;

use botmesh_core::journal::OnAmbiguous;
use botmesh_core::provider::Resolve;
use botmesh_core::time::Timestamp;

/// Time stands still in the model. Whatever is due may be taken up at any moment, and a lease runs out when the adversary
/// says so: every order that some clocks could produce is there.
pub(crate) const NOW: Timestamp = Timestamp::from_millis(0);

/// How often each thing may go wrong. Together they bound the states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// A process dies.
    pub(crate) crashes: u8,
    /// Another process starts under an instance id that is in use.
    pub(crate) usurpers: u8,
    /// A session runs out, or is removed, although its process lives and goes on writing.
    pub(crate) expiries: u8,
    /// The backend's answer to a write is lost. The write takes effect at once, later, after the death of its writer, or
    /// never.
    pub(crate) lost_answers: u8,
    /// The channel refuses a send, for now or for good.
    pub(crate) refusals: u8,
    /// The channel's answer is lost; the send was delivered or not.
    pub(crate) timeouts: u8,
    /// A handler fails and its message is tried again.
    pub(crate) failures: u8,
    /// A process loses a turn and drops the handler, and its send, in the middle.
    pub(crate) lost_turns: u8,
    /// The channel delivers an event that was acknowledged.
    pub(crate) redeliveries: u8,
    /// An operator replays a message.
    pub(crate) replays: u8,
    /// An operator retries a send.
    pub(crate) retries: u8,
}

/// A rule that the program keeps, broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Writes are not compared with the version that was read.
    BlindWrites,
    /// The sweeper adopts from what it saw, whatever became of it since.
    StaleRescue,
    /// A claim that another one won runs the message all the same.
    RunsWithoutTheClaim,
    /// A write does not say whose it is: after a lost answer, one's own record looks like another's.
    NoWriteIds,
    /// An insert overwrites what is there.
    InsertOverwrites,
    /// Starting a message charges no attempt.
    FreeStart,
    /// Starting a send charges no attempt.
    FreeSend,
    /// A message that is released is left to others, which do not take it from a living process.
    ReleasedAndForgotten,
    /// A failed attempt leaves no due time.
    RetryWithoutDue,
    /// What an earlier start of the own instance left is taken for a living process's.
    EpochIgnored,
    /// A message is done before its last send is recorded.
    AckBeforeSends,
    /// The channel is called before the record that says so is durable.
    CallBeforeIntent,
    /// A timeout of the channel counts as a failure that delivered nothing.
    TimeoutIsFailure,
    /// A replay starts a send that another process has in flight.
    IgnoresIntent,
    /// An operator may retry what was sent.
    RetrySent,
    /// A send whose beginning was dropped is taken back although another process began it.
    TakesBackAnothers,
    /// What is ambiguous is given up although the policy is to send it again.
    GivesUpUnderResend,
    /// Each attempt has a token of its own.
    TokenPerAttempt,
    /// What the channel may still echo is sent again.
    EchoNotAwaited,
    /// A part of a text does not wait for the one before it.
    PartsOutOfOrder,
}

#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) policy: OnAmbiguous,
    pub(crate) channel: Resolve,
    /// Messages of one chat.
    pub(crate) messages: usize,
    /// Sends of each message's handler.
    pub(crate) sends: usize,
    /// Whether they are the parts of one text.
    pub(crate) parts: bool,
    /// The budget of a message.
    pub(crate) max_attempts: u32,
    /// The budget of a send, after its first attempt.
    pub(crate) retries: u32,
    pub(crate) faults: Faults,
    pub(crate) broken: Option<Broken>,
}

impl Setting {
    /// One message with one reply.
    pub(crate) fn new(policy: OnAmbiguous, faults: Faults) -> Self {
        let channel = Resolve::Never;
        Self {
            policy,
            channel,
            messages: 1,
            sends: 1,
            parts: false,
            max_attempts: 2,
            retries: 1,
            faults,
            broken: None,
        }
    }

    /// The handler sends one text in two parts.
    pub(crate) fn in_parts(self) -> Self {
        Self { sends: 2, parts: true, ..self }
    }

    /// On a channel that drops what it saw before, under the same token.
    pub(crate) fn deduping(self) -> Self {
        Self { channel: Resolve::Dedupe { window: Duration::from_secs(60) }, ..self }
    }

    /// On a channel that sends back what it delivered.
    pub(crate) fn echoing(self) -> Self {
        Self { channel: Resolve::Echo { wait: Duration::from_secs(60) }, ..self }
    }

    /// On a channel that can be asked what became of a send.
    pub(crate) fn answering(self) -> Self {
        Self { channel: Resolve::Lookup, ..self }
    }

    pub(crate) fn echoes(&self) -> bool {
        matches!(self.channel, Resolve::Echo { .. })
    }

    /// Whether a send may be given up as unknown.
    pub(crate) fn may_give_up(&self) -> bool {
        self.policy != OnAmbiguous::Resend && matches!(self.channel, Resolve::Never | Resolve::Echo { .. })
    }

    pub(crate) fn dedupes(&self) -> bool {
        matches!(self.channel, Resolve::Dedupe { .. })
    }

    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, messages, sends, faults, .. } = self;
        let channel = match self.channel {
            Resolve::Never => "",
            Resolve::Lookup => ", lookup",
            Resolve::Dedupe { .. } => ", token",
            Resolve::Echo { .. } => ", echo",
        };
        let what = if self.parts { "part(s)" } else { "send(s)" };
        write!(f, "{policy:?}{channel}, {messages} message(s) with {sends} {what}")?;
        let Faults { crashes, usurpers, expiries, lost_answers, refusals, timeouts, .. } = faults;
        let Faults { failures, lost_turns, redeliveries, replays, retries, .. } = faults;
        for (name, count) in [
            ("crashes", crashes),
            ("usurpers", usurpers),
            ("expiries", expiries),
            ("lost answers", lost_answers),
            ("refusals", refusals),
            ("timeouts", timeouts),
            ("failures", failures),
            ("lost turns", lost_turns),
            ("redeliveries", redeliveries),
            ("replays", replays),
            ("retries", retries),
        ] {
            if *count > 0 {
                write!(f, ", {name}: {count}")?;
            }
        }
        Ok(())
    }
}
