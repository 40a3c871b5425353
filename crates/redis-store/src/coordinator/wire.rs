//! The scripts of the turns as calls.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::coordinator::Fence;
use botmesh_core::coordinator::machine::{
    Beat, Ending, Leaving, Liveness, Locking, MAX_LOCK_TTL, Previous, Standing,
};
use botmesh_core::error::StoreError;
use botmesh_core::id::SessionId;
use botmesh_core::time::Clock;

use self::Arg::{Number, Text, Ticket};
use super::bucket::Bucket;
use super::config::RedisCoordinatorConfig;
use crate::client::{Client, Reply, Unexpected};
use crate::error::Access;
use crate::scripts::{self, Script};

/// An answer, and the epoch in which it was given; `None` if the server knows of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer<T> {
    pub(super) epoch: Option<Bytes>,
    /// Another node of a Cluster has the bucket now.
    pub(super) moved: bool,
    pub(super) what: T,
}

/// A grant that the server did not push because whoever left is of the same session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) seq: u64,
    pub(super) fence: Fence,
    pub(super) previous: Option<Previous>,
}

/// What the server says of a living session. Times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beaten {
    /// Its wall clock.
    pub(super) wall: u64,
    /// When a session ended by itself whose tickets may be where nobody comes again.
    pub(super) ended: Option<u64>,
}

/// Whether a ticket is taken where it would have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Wait,
    Try,
}

/// What is asked for a ticket that goes in one call with others.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Enter,
    Leave(Leaving),
}

/// A ticket that goes in one call with others.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) key: Arc<str>,
    pub(super) seq: u64,
    pub(super) asked: Asked,
}

/// How a ticket is asked for.
pub(super) struct Entry {
    pub(super) seq: u64,
    pub(super) mode: Mode,
    /// Its number is larger.
    pub(super) floor: Fence,
}

/// What the server pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Push {
    /// Whether the ticket became the head; if not, somebody waits for it.
    pub(super) grants: bool,
    pub(super) epoch: Arc<str>,
    pub(super) session: SessionId,
    pub(super) seq: u64,
    pub(super) fence: Fence,
    pub(super) previous: Option<Previous>,
    pub(super) key: Arc<str>,
}

impl Push {
    /// `None` if it is not of this version.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(7, '|');
        let grants = match parts.next()? {
            "g" => true,
            "n" => false,
            _ => return None,
        };
        Some(Self {
            grants,
            epoch: parts.next()?.into(),
            session: parts.next()?.into(),
            seq: parts.next()?.parse().ok()?,
            fence: Fence(parts.next()?.parse().ok()?),
            previous: previous(parts.next()?)?,
            key: parts.next()?.into(),
        })
    }
}

/// `None` if the text is not of this version.
fn previous(text: &str) -> Option<Option<Previous>> {
    let Some(mark) = text.chars().next() else { return Some(None) };
    let given_back = match mark {
        '!' => true,
        '?' => false,
        _ => return None,
    };
    Some(Some(Previous { session: SessionId::from(&text[1..]), given_back }))
}

/// The parts of an answer.
#[derive(Debug)]
pub(super) struct Texts(std::vec::IntoIter<Bytes>);

fn split(answer: &Bytes, by: u8) -> Texts {
    let parts = answer.split(|byte| *byte == by).map(|part| answer.slice_ref(part));
    Texts(parts.collect::<Vec<_>>().into_iter())
}

impl Texts {
    /// Splits off the epoch; `None` if there is none.
    pub(super) fn new(answer: &Bytes) -> Result<(Option<Bytes>, Self), Unexpected> {
        let mut texts = split(answer, b'|');
        Ok((texts.epoch()?, texts))
    }

    /// The epoch, and what is answered for each ticket; `None` for one that is to be asked for by itself.
    pub(super) fn of_each(answer: &Bytes) -> Result<(Option<Bytes>, Vec<Option<Self>>), Unexpected> {
        let mut lines = split(answer, b'\n');
        let epoch = lines.epoch()?;
        Ok((epoch, lines.0.map(|line| (!line.is_empty()).then(|| split(&line, b'|'))).collect()))
    }

    fn epoch(&mut self) -> Result<Option<Bytes>, Unexpected> {
        Ok(Some(self.next()?).filter(|epoch| !epoch.is_empty()))
    }

    fn next(&mut self) -> Result<Bytes, Unexpected> {
        self.0.next().ok_or_else(|| Unexpected::new("too little"))
    }

    fn session(&mut self) -> Result<SessionId, Unexpected> {
        read(&self.next()?).map(SessionId::from)
    }

    fn number(&mut self) -> Result<u64, Unexpected> {
        read(&self.next()?)?.parse().map_err(|_| Unexpected::new("a text where a number is due"))
    }

    fn previous(&mut self) -> Result<Option<Previous>, Unexpected> {
        previous(read(&self.next()?)?).ok_or_else(|| Unexpected::new("an unknown mark of a previous holder"))
    }

    pub(super) fn fence(&mut self) -> Result<Fence, Unexpected> {
        self.number().map(Fence)
    }

    fn micros(&mut self) -> Result<Duration, Unexpected> {
        self.number().map(Duration::from_micros)
    }

    pub(super) fn liveness(mut self) -> Result<Liveness, Unexpected> {
        Ok(if self.next()? == "alive" { Liveness::Alive } else { Liveness::Dead })
    }

    fn beaten(mut self) -> Result<Option<Beaten>, Unexpected> {
        if self.next()? != "alive" {
            return Ok(None);
        }
        let (wall, ended) = (self.number()?, self.next().unwrap_or_default());
        Ok(Some(Beaten { wall, ended: read(&ended)?.parse().ok() }))
    }

    /// Whether more is to be removed.
    pub(super) fn swept(mut self) -> Result<bool, Unexpected> {
        Ok(self.next()? == "1")
    }

    pub(super) fn standing(mut self) -> Result<Standing, Unexpected> {
        Ok(match &*self.next()? {
            b"granted" => Standing::Granted { fence: self.fence()?, previous: self.previous()? },
            b"waiting" => Standing::Waiting {
                fence: self.fence()?,
                holder: self.session()?,
                remaining: Some(self.micros()?),
            },
            b"busy" => Standing::Busy { holder: self.session()?, remaining: Some(self.micros()?) },
            b"overloaded" => Standing::Overloaded,
            b"unknown" => Standing::Unknown,
            b"dead" => Standing::Dead,
            _ => return Err(Unexpected::new("an unknown standing of a ticket")),
        })
    }

    /// Whether the ticket was there, and who is next in the same session.
    pub(super) fn left(mut self) -> Result<(bool, Option<Next>), Unexpected> {
        let left = self.next()? == "left";
        if self.0.len() == 0 {
            return Ok((left, None));
        }
        let next = Next { seq: self.number()?, fence: self.fence()?, previous: self.previous()? };
        Ok((left, Some(next)))
    }

    pub(super) fn locking(mut self) -> Result<Locking, Unexpected> {
        Ok(match &*self.next()? {
            b"acquired" => Locking::Acquired(self.fence()?),
            b"busy" => Locking::Busy { remaining: self.micros()? },
            _ => Locking::Unopened,
        })
    }

    pub(super) fn renewed(mut self) -> Result<Option<Fence>, Unexpected> {
        let fence = self.next()?;
        if fence.is_empty() {
            return Ok(None);
        }
        let fence = read(&fence)?.parse().map_err(|_| Unexpected::new("a fence that is no number"))?;
        Ok(Some(Fence(fence)))
    }

    pub(super) fn released(mut self) -> Result<bool, Unexpected> {
        Ok(self.next()? == "1")
    }
}

/// How a ticket is given back, as the script calls it.
pub(super) fn word(leaving: Leaving) -> &'static str {
    match leaving {
        Leaving::Done => "done",
        Leaving::Abandoned => "abandoned",
        Leaving::Unused => "unused",
    }
}

/// A connection that speaks the scripts.
pub(super) struct Wire {
    pub(super) client: Client,
    clock: Arc<dyn Clock>,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// How long a lock may last.
fn lock_micros(ttl: Duration) -> u64 {
    micros(ttl.clamp(Duration::from_millis(1), MAX_LOCK_TTL))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn read(text: &[u8]) -> Result<&str, Unexpected> {
    std::str::from_utf8(text).map_err(|_| Unexpected::new("bytes that are no text"))
}

/// An argument of a script.
#[derive(Clone, Copy)]
enum Arg<'a> {
    Text(&'a str),
    Number(u64),
    Ticket(Asked, u64),
}

/// As the script calls it that does so for many: by the first letter of its word.
pub(super) fn letter(asked: Asked) -> &'static str {
    match asked {
        Asked::Enter => "e",
        Asked::Leave(leaving) => &word(leaving)[..1],
    }
}

/// Arguments as a command has them: all in one buffer, since each message costs two calls.
fn packed(first: Arg<'_>, others: &[Arg<'_>]) -> Vec<Bytes> {
    let (mut all, mut ends) = (String::with_capacity(128), Vec::with_capacity(1 + others.len()));
    for arg in std::iter::once(&first).chain(others) {
        match arg {
            Text(text) => all.push_str(text),
            // A string takes everything.
            Number(number) => _ = write!(all, "{number}"),
            Ticket(asked, seq) => _ = write!(all, "{}{seq}", letter(*asked)),
        }
        ends.push(all.len());
    }
    let all = Bytes::from(all);
    let begins = std::iter::once(0).chain(ends.iter().copied());
    begins.zip(&ends).map(|(begin, end)| all.slice(begin..*end)).collect()
}

impl Wire {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock }
    }

    async fn call<T>(
        &self,
        bucket: &Bucket,
        script: &Script,
        keys: &[Bytes],
        args: &[Arg<'_>],
        read: impl FnOnce(Texts) -> Result<T, Unexpected>,
    ) -> Result<Answer<T>, StoreError> {
        let (reply, sent) = self.send(bucket, script, keys, args).await?;
        let moved = reply.is_moved();
        let read_all = |text| {
            let (epoch, texts) = Texts::new(&text)?;
            Ok((epoch, read(texts)?))
        };
        let (epoch, what) = reply.text().and_then(read_all).map_err(|what| self.strange(what))?;
        // A ticket that is given back may leave the clocks as they were.
        if script.number != scripts::LEAVE.number {
            bucket.witness(sent);
        }
        Ok(Answer { epoch, moved, what })
    }

    /// What is answered, and when it was asked, in microseconds.
    async fn send(
        &self,
        bucket: &Bucket,
        script: &Script,
        keys: &[Bytes],
        args: &[Arg<'_>],
    ) -> Result<(Reply, u64), StoreError> {
        let sent = micros(self.clock.monotonic()).max(1);
        // The request may take a while to arrive, which the caller sees pass only if it waits for longer.
        let late = micros(self.client.config().command_timeout);
        let elapsed = bucket.elapsed(sent).map_or(Text(""), |elapsed| Number(elapsed.saturating_add(late)));
        let reply = self.client.script("turns", Access::Read, script, keys, packed(elapsed, args)).await?;
        Ok((reply, sent))
    }

    pub(super) fn strange(&self, what: Unexpected) -> StoreError {
        what.error("turns", self.client.place(), Access::Read)
    }

    /// What becomes of tickets of a session, each of which is the only one of its key; of the others, `None`.
    pub(super) async fn together(
        &self,
        bucket: &Bucket,
        session: &SessionId,
        tickets: &[Ask],
        floor: Fence,
        idle_ttl: Duration,
    ) -> Result<Answer<Vec<Option<Texts>>>, StoreError> {
        let queues = tickets.iter().map(|ticket| bucket.queue(&ticket.key));
        let keys: Vec<_> = std::iter::once(bucket.state()).chain(queues).collect();
        let mut args = vec![Text(session.as_str()), Number(millis(idle_ttl)), Number(floor.0)];
        args.extend(tickets.iter().map(|ticket| Ticket(ticket.asked, ticket.seq)));
        let (reply, sent) = self.send(bucket, &scripts::TOGETHER, &keys, &args).await?;
        let moved = reply.is_moved();
        let read = reply.text().and_then(|text| Texts::of_each(&text));
        let (epoch, what) = read.map_err(|what| self.strange(what))?;
        let is_granted = |(ticket, answer): (&Ask, &Option<Texts>)| {
            matches!(ticket.asked, Asked::Enter) && answer.is_some()
        };
        // Only then it writes the clocks.
        if tickets.iter().zip(&what).any(is_granted) {
            bucket.witness(sent);
        }
        Ok(Answer { epoch, moved, what })
    }

    pub(super) async fn open(
        &self,
        bucket: &Bucket,
        session: &SessionId,
        lease: Duration,
        known: Option<&str>,
        floor: Fence,
    ) -> Result<Answer<Liveness>, StoreError> {
        let known = Text(known.unwrap_or_default());
        let args = [Text(session.as_str()), Number(micros(lease)), known, Number(floor.0)];
        self.call(bucket, &scripts::OPEN, &[bucket.state()], &args, Texts::liveness).await
    }

    /// `None` if the session is dead.
    pub(super) async fn beat(
        &self,
        bucket: &Bucket,
        session: &SessionId,
        lease: Duration,
        beat: Beat,
    ) -> Result<Answer<Option<Beaten>>, StoreError> {
        let args = [Text(session.as_str()), Number(micros(lease)), Number(beat.number), Number(beat.mark)];
        self.call(bucket, &scripts::BEAT, &[bucket.state()], &args, Texts::beaten).await
    }

    pub(super) async fn close(
        &self,
        bucket: &Bucket,
        session: &SessionId,
        ending: Ending,
    ) -> Result<Answer<()>, StoreError> {
        let how = match ending {
            Ending::Closed => "closed",
            Ending::Lost => "lost",
        };
        let args = [Text(session.as_str()), Text(how)];
        self.call(bucket, &scripts::CLOSE, &[bucket.state()], &args, |_| Ok(())).await
    }

    pub(super) async fn enter(
        &self,
        bucket: &Bucket,
        key: &str,
        session: &SessionId,
        entry: Entry,
        config: &RedisCoordinatorConfig,
    ) -> Result<Answer<Standing>, StoreError> {
        let idle = millis(config.idle_ttl);
        let mode = match entry.mode {
            Mode::Wait => "wait",
            Mode::Try => "try",
        };
        let args = [
            Text(session.as_str()),
            Number(entry.seq),
            Number(config.max_waiters.into()),
            Text(mode),
            Number(idle),
            Number(entry.floor.0),
        ];
        self.call(bucket, &scripts::ENTER, &bucket.turn(key), &args, Texts::standing).await
    }

    pub(super) async fn leave(
        &self,
        bucket: &Bucket,
        key: &str,
        session: &SessionId,
        seq: u64,
        leaving: Leaving,
        idle_ttl: Duration,
    ) -> Result<Answer<(bool, Option<Next>)>, StoreError> {
        let idle = millis(idle_ttl);
        let args = [Text(session.as_str()), Number(seq), Number(idle), Text(word(leaving))];
        self.call(bucket, &scripts::LEAVE, &bucket.turn(key), &args, Texts::left).await
    }

    pub(super) async fn poll(
        &self,
        bucket: &Bucket,
        key: &str,
        session: &SessionId,
        seq: u64,
    ) -> Result<Answer<Standing>, StoreError> {
        let args = [Text(session.as_str()), Number(seq)];
        self.call(bucket, &scripts::POLL, &bucket.turn(key), &args, Texts::standing).await
    }

    /// Removes the dead at the head of a queue. Whether there are more.
    pub(super) async fn sweep(
        &self,
        bucket: &Bucket,
        key: &str,
        idle_ttl: Duration,
    ) -> Result<Answer<bool>, StoreError> {
        let idle = millis(idle_ttl);
        let args = [Text(""), Number(idle)];
        self.call(bucket, &scripts::SWEEP, &bucket.turn(key), &args, Texts::swept).await
    }

    pub(super) async fn lock_acquire(
        &self,
        bucket: &Bucket,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Answer<Locking>, StoreError> {
        let (keys, args) = ([bucket.state(), bucket.lock(key)], [Text(token), Number(lock_micros(ttl))]);
        self.call(bucket, &scripts::LOCK_ACQUIRE, &keys, &args, Texts::locking).await
    }

    pub(super) async fn lock_renew(
        &self,
        bucket: &Bucket,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Answer<Option<Fence>>, StoreError> {
        let (keys, args) = ([bucket.state(), bucket.lock(key)], [Text(token), Number(lock_micros(ttl))]);
        self.call(bucket, &scripts::LOCK_RENEW, &keys, &args, Texts::renewed).await
    }

    pub(super) async fn lock_release(
        &self,
        bucket: &Bucket,
        key: &str,
        token: &str,
    ) -> Result<Answer<bool>, StoreError> {
        let keys = [bucket.state(), bucket.lock(key)];
        self.call(bucket, &scripts::LOCK_RELEASE, &keys, &[Text(token)], Texts::released).await
    }
}
