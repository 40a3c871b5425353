//! The scripts of the turns as calls.

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::coordinator::Fence;
use botmesh_core::coordinator::machine::{Beat, Ending, Leaving, Liveness, Locking, Previous, Standing};
use botmesh_core::error::StoreError;
use botmesh_core::id::SessionId;
use botmesh_core::time::Clock;

use super::bucket::Bucket;
use super::config::RedisCoordinatorConfig;
use crate::client::{Client, Unexpected};
use crate::error::Access;
use crate::scripts::{self, Script};

/// An answer, and the epoch in which it was given; `None` if the server knows of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer<T> {
    pub(super) epoch: Option<Arc<str>>,
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

/// How a ticket is asked for.
pub(super) struct Entry<'a> {
    pub(super) key: &'a str,
    pub(super) session: &'a SessionId,
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

/// The texts of an answer.
pub(super) struct Texts(std::vec::IntoIter<Bytes>);

impl Texts {
    /// Splits off the epoch.
    pub(super) fn new(texts: Vec<Bytes>) -> Result<(Option<Arc<str>>, Self), Unexpected> {
        let mut texts = Self(texts.into_iter());
        let epoch = texts.text()?;
        Ok(((!epoch.is_empty()).then(|| epoch.into()), texts))
    }

    fn text(&mut self) -> Result<String, Unexpected> {
        let next = self.0.next().and_then(|text| String::from_utf8(text.to_vec()).ok());
        next.ok_or_else(|| Unexpected::new("too little"))
    }

    fn number(&mut self) -> Result<u64, Unexpected> {
        self.text()?.parse().map_err(|_| Unexpected::new("a text where a number is due"))
    }

    fn previous(&mut self) -> Result<Option<Previous>, Unexpected> {
        previous(&self.text()?).ok_or_else(|| Unexpected::new("an unknown mark of a previous holder"))
    }

    pub(super) fn fence(&mut self) -> Result<Fence, Unexpected> {
        self.number().map(Fence)
    }

    fn micros(&mut self) -> Result<Duration, Unexpected> {
        self.number().map(Duration::from_micros)
    }

    pub(super) fn liveness(mut self) -> Result<Liveness, Unexpected> {
        Ok(if self.text()? == "alive" { Liveness::Alive } else { Liveness::Dead })
    }

    fn beaten(mut self) -> Result<Option<Beaten>, Unexpected> {
        if self.text()? != "alive" {
            return Ok(None);
        }
        let (wall, ended) = (self.number()?, self.text().unwrap_or_default());
        Ok(Some(Beaten { wall, ended: ended.parse().ok() }))
    }

    /// Whether more is to be removed.
    pub(super) fn swept(mut self) -> Result<bool, Unexpected> {
        Ok(self.text()? == "1")
    }

    pub(super) fn standing(mut self) -> Result<Standing, Unexpected> {
        Ok(match self.text()?.as_str() {
            "granted" => Standing::Granted { fence: self.fence()?, previous: self.previous()? },
            "waiting" => Standing::Waiting {
                fence: self.fence()?,
                holder: self.text()?.into(),
                remaining: Some(self.micros()?),
            },
            "busy" => Standing::Busy { holder: self.text()?.into(), remaining: Some(self.micros()?) },
            "overloaded" => Standing::Overloaded,
            "unknown" => Standing::Unknown,
            "dead" => Standing::Dead,
            _ => return Err(Unexpected::new("an unknown standing of a ticket")),
        })
    }

    /// Whether the ticket was there, and who is next in the same session.
    pub(super) fn left(mut self) -> Result<(bool, Option<Next>), Unexpected> {
        let left = self.text()? == "left";
        if self.0.len() == 0 {
            return Ok((left, None));
        }
        let next = Next { seq: self.number()?, fence: self.fence()?, previous: self.previous()? };
        Ok((left, Some(next)))
    }

    pub(super) fn locking(mut self) -> Result<Locking, Unexpected> {
        Ok(match self.text()?.as_str() {
            "acquired" => Locking::Acquired(self.fence()?),
            "busy" => Locking::Busy { remaining: self.micros()? },
            _ => Locking::Unopened,
        })
    }

    pub(super) fn renewed(mut self) -> Result<Option<Fence>, Unexpected> {
        let fence = self.text()?;
        if fence.is_empty() {
            return Ok(None);
        }
        let fence = fence.parse().map_err(|_| Unexpected::new("a fence that is no number"))?;
        Ok(Some(Fence(fence)))
    }

    pub(super) fn released(mut self) -> Result<bool, Unexpected> {
        Ok(self.text()? == "1")
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

fn digits(number: u64) -> Bytes {
    number.to_string().into()
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Wire {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock }
    }

    async fn call<T>(
        &self,
        bucket: &Bucket,
        script: &Script,
        second: Option<Bytes>,
        args: Vec<Bytes>,
        read: impl FnOnce(Texts) -> Result<T, Unexpected>,
    ) -> Result<Answer<T>, StoreError> {
        let sent = micros(self.clock.monotonic()).max(1);
        // The request may take a while to arrive, which the caller sees pass only if it waits for longer.
        let late = micros(self.client.config().command_timeout);
        let elapsed = bucket.elapsed(sent).map(|elapsed| digits(elapsed.saturating_add(late)));
        let mut all = vec![elapsed.unwrap_or_default()];
        all.extend(args);
        let keys: Vec<_> = std::iter::once(bucket.state()).chain(second).collect();
        let reply = self.client.script("turns", Access::Read, script, &keys, all).await?;
        let strange = |what: Unexpected| what.error("turns", self.client.place(), Access::Read);
        let moved = reply.is_moved();
        let (epoch, texts) = reply.texts().and_then(Texts::new).map_err(strange)?;
        bucket.witness(sent);
        Ok(Answer { epoch, moved, what: read(texts).map_err(strange)? })
    }

    pub(super) async fn open(
        &self,
        bucket: &Bucket,
        session: &SessionId,
        lease: Duration,
        known: Option<&str>,
        floor: Fence,
    ) -> Result<Answer<Liveness>, StoreError> {
        let known = text(known.unwrap_or_default());
        let args = vec![text(session.as_str()), digits(micros(lease)), known, digits(floor.0)];
        self.call(bucket, &scripts::OPEN, None, args, Texts::liveness).await
    }

    /// `None` if the session is dead.
    pub(super) async fn beat(
        &self,
        bucket: &Bucket,
        session: &SessionId,
        lease: Duration,
        beat: Beat,
    ) -> Result<Answer<Option<Beaten>>, StoreError> {
        let args =
            vec![text(session.as_str()), digits(micros(lease)), digits(beat.number), digits(beat.mark)];
        self.call(bucket, &scripts::BEAT, None, args, Texts::beaten).await
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
        self.call(bucket, &scripts::CLOSE, None, vec![text(session.as_str()), text(how)], |_| Ok(())).await
    }

    pub(super) async fn enter(
        &self,
        bucket: &Bucket,
        entry: Entry<'_>,
        config: &RedisCoordinatorConfig,
    ) -> Result<Answer<Standing>, StoreError> {
        let idle = u64::try_from(config.idle_ttl.as_millis()).unwrap_or(u64::MAX);
        let mode: &[u8] = match entry.mode {
            Mode::Wait => b"wait",
            Mode::Try => b"try",
        };
        let args = vec![
            text(entry.session.as_str()),
            digits(entry.seq),
            digits(config.max_waiters.into()),
            Bytes::from_static(mode),
            digits(idle),
            digits(entry.floor.0),
        ];
        self.call(bucket, &scripts::ENTER, Some(bucket.queue(entry.key)), args, Texts::standing).await
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
        let idle = u64::try_from(idle_ttl.as_millis()).unwrap_or(u64::MAX);
        let args = vec![text(session.as_str()), digits(seq), digits(idle), text(word(leaving))];
        self.call(bucket, &scripts::LEAVE, Some(bucket.queue(key)), args, Texts::left).await
    }

    pub(super) async fn poll(
        &self,
        bucket: &Bucket,
        key: &str,
        session: &SessionId,
        seq: u64,
    ) -> Result<Answer<Standing>, StoreError> {
        let args = vec![text(session.as_str()), digits(seq)];
        self.call(bucket, &scripts::POLL, Some(bucket.queue(key)), args, Texts::standing).await
    }

    /// Removes the dead at the head of a queue. Whether there are more.
    pub(super) async fn sweep(
        &self,
        bucket: &Bucket,
        key: &str,
        idle_ttl: Duration,
    ) -> Result<Answer<bool>, StoreError> {
        let idle = u64::try_from(idle_ttl.as_millis()).unwrap_or(u64::MAX);
        let args = vec![Bytes::new(), digits(idle)];
        self.call(bucket, &scripts::SWEEP, Some(bucket.queue(key)), args, Texts::swept).await
    }

    pub(super) async fn lock_acquire(
        &self,
        bucket: &Bucket,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Answer<Locking>, StoreError> {
        let args = vec![text(token), digits(micros(ttl))];
        self.call(bucket, &scripts::LOCK_ACQUIRE, Some(bucket.lock(key)), args, Texts::locking).await
    }

    pub(super) async fn lock_renew(
        &self,
        bucket: &Bucket,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Answer<Option<Fence>>, StoreError> {
        let args = vec![text(token), digits(micros(ttl))];
        self.call(bucket, &scripts::LOCK_RENEW, Some(bucket.lock(key)), args, Texts::renewed).await
    }

    pub(super) async fn lock_release(
        &self,
        bucket: &Bucket,
        key: &str,
        token: &str,
    ) -> Result<Answer<bool>, StoreError> {
        let lock = Some(bucket.lock(key));
        self.call(bucket, &scripts::LOCK_RELEASE, lock, vec![text(token)], Texts::released).await
    }
}
