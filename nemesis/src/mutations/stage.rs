//! The server, the resource and the harness's own history.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::time::{Clock as _, SystemClock};
use botmesh_redis_store::{RedisConfig, RedisCoordinatorConfig, RedisStore, Rule};
use botmesh_test_servers::{Options, Redis};

use super::Failure;
use super::actor::PREFIX;
use crate::history::{Config, Event, Fault, Metronome, Recorder};
use crate::world::servers;

pub(super) const LEASE: Duration = Duration::from_secs(2);
/// For how long a queue without tickets is remembered.
pub(super) const IDLE: Duration = Duration::from_secs(2);

pub(super) struct Stage {
    pub(super) redis: Redis,
    pub(super) folder: PathBuf,
    pub(super) resource: Arc<Resource>,
    rule: Option<Rule>,
    history: Arc<Recorder>,
    clock: SystemClock,
    _metronome: Metronome,
}

/// What replicas write to.
pub(super) struct Resource {
    taken: Mutex<HashMap<String, (u64, String)>>,
    history: Recorder,
}

impl Resource {
    pub(super) fn write(&self, chat: &str, n: u64, sid: &str) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let last = taken.get(chat);
        let accepted = last.is_none_or(|(last, of)| n > *last || (n == *last && sid == of));
        if accepted {
            taken.insert(chat.to_owned(), (n, sid.to_owned()));
        }
        self.history.record(Event::Write { chat: chat.into(), n, sid: sid.into(), accepted });
    }

    /// What is seen at the other end of the replicas' calls.
    pub(super) fn record(&self, event: Event) {
        self.history.record(event);
    }
}

impl Stage {
    pub(super) fn new(folder: &Path, rule: Option<Rule>) -> Result<Self, Failure> {
        let redis = Redis::start(&Options::new())?;
        let history = Arc::new(Recorder::create(folder, "harness")?);
        let resource = Resource { taken: Mutex::default(), history: Recorder::create(folder, "resource")? };
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let margin = (LEASE / 10).max(Duration::from_millis(200));
        let config = Config {
            lease_ms: millis(LEASE),
            margin_ms: millis(margin),
            idle_ttl_ms: millis(IDLE),
            turn_wait_ms: 60_000,
        };
        history.record(Event::Start { seed: 0, config });
        let metronome = Metronome::start(Arc::clone(&history))?;
        Ok(Self {
            redis,
            folder: folder.to_owned(),
            resource: Arc::new(resource),
            rule,
            history,
            clock: SystemClock::new(),
            _metronome: metronome,
        })
    }

    /// What the replicas are told.
    pub(super) fn config(&self) -> RedisCoordinatorConfig {
        let config = RedisCoordinatorConfig::default().with_lease(LEASE).with_idle_ttl(IDLE);
        let config = config.with_turn_wait(Duration::from_secs(60));
        // Some faults set it; it is right until then.
        let config = config.with_clock_ahead();
        match self.rule {
            Some(rule) => config.without(rule),
            None => config,
        }
    }

    pub(super) fn fault(&self, what: Fault, target: Option<&str>) {
        let target = target.map(str::to_owned);
        self.history.record(Event::Nemesis { what, target, target_pid: None, detail: None, until_t: None });
    }

    /// The store of a replica at `url`.
    pub(super) async fn store(&self, url: &str) -> Result<RedisStore, Failure> {
        let config = RedisConfig::default().with_prefix(PREFIX);
        Ok(match self.rule {
            Some(rule) => RedisStore::open_without(rule, url, config).await?,
            None => RedisStore::open_with(url, config).await?,
        })
    }

    /// What the server did so far.
    pub(super) fn usage(&self) -> Result<(), Failure> {
        let (calls, keys) = servers::usage(&self.redis)?;
        self.history.record(Event::Usage { calls, keys });
        Ok(())
    }

    /// What is in the queues now that nobody wants anything.
    pub(super) fn queues(&self) -> Result<(), Failure> {
        let left = servers::tickets(&self.redis)?.len() as u64;
        self.history.record(Event::Queues { left });
        Ok(())
    }

    pub(super) async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }

    pub(super) fn end(&self) {
        self.history.record(Event::Quiet);
        self.history.record(Event::End);
    }
}
