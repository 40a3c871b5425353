//! A bot in a process of its own, whose handlers stand still in ways that the example's do not: this test binary once
//! more.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use botmesh::core::CancellationToken;
use botmesh::core::error::{ChannelError, ErrorClass, Phase, SendError};
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use botmesh::prelude::*;
use botmesh_sqlite_store::SqliteStore;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::child::{Place, pause};
use crate::tasks::ticking;

const SETTINGS: &str = "BOTMESH_TEST_REPLICA";

/// What a replica is to do.
#[derive(Serialize, Deserialize)]
struct Settings {
    folder: PathBuf,
    instance: String,
    lease: Duration,
    /// What its channel delivers at the start, as chat and text.
    messages: Vec<(String, String)>,
    /// Whether it has the task of `tasks.rs`.
    ticks: bool,
}

/// A running replica. It is killed when dropped.
pub(crate) struct Replica {
    child: Child,
    log: String,
}

impl Replica {
    pub(crate) fn start(place: &Place, instance: &str, lease: Duration, messages: &[(&str, &str)]) -> Self {
        Self::start_logging(place, instance, instance, lease, messages)
    }

    /// With a log of another name than the instance.
    pub(crate) fn start_logging(
        place: &Place,
        log: &str,
        instance: &str,
        lease: Duration,
        messages: &[(&str, &str)],
    ) -> Self {
        let messages = messages.iter().map(|(chat, text)| ((*chat).to_owned(), (*text).to_owned())).collect();
        let (folder, instance) = (place.path(""), instance.to_owned());
        Self::launch(place, log, &Settings { folder, instance, lease, messages, ticks: false })
    }

    /// With a task in place of messages; see `tasks.rs`.
    pub(crate) fn start_ticking(place: &Place, log: &str, instance: &str, lease: Duration) -> Self {
        let (folder, instance) = (place.path(""), instance.to_owned());
        Self::launch(place, log, &Settings { folder, instance, lease, messages: Vec::new(), ticks: true })
    }

    fn launch(place: &Place, log: &str, settings: &Settings) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the test has a path"));
        command
            .args(["--exact", "replica::process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(SETTINGS, serde_json::to_string(settings).expect("JSON"))
            .env("BOTMESH_TEST_LOG", log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(place.path("stderr")).expect("a file"));
        Self { child: command.spawn().expect("the replica starts"), log: format!("{log}.log") }
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the replica can be killed");
        self.child.wait().expect("the replica can be waited for");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "the signal cannot be sent");
    }

    /// What it told so far, line by line.
    pub(crate) fn told(&self, place: &Place) -> Vec<String> {
        let told = String::from_utf8(place.bytes(&self.log)).expect("text");
        let whole = &told[..told.rfind('\n').map_or(0, |end| end + 1)];
        whole.lines().map(str::to_owned).collect()
    }

    pub(crate) fn wait_for_line(&self, place: &Place, what: &str) {
        place.wait_for(what, || self.told(place).iter().any(|line| line.contains(what)).then_some(()));
    }

    /// Waits for its end, whether somebody asked for it or not.
    pub(crate) fn wait(&mut self, place: &Place) -> ExitStatus {
        place.wait(&mut self.child)
    }

    pub(crate) fn stop(mut self, place: &Place) -> Vec<String> {
        self.signal("TERM");
        self.wait(place);
        self.told(place)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Delivers some messages, then nothing; appends what is sent to a file.
struct Desk {
    messages: Vec<(String, String)>,
    sent: PathBuf,
    log: PathBuf,
    connection: watch::Sender<ConnectionState>,
}

#[async_trait]
impl Provider for Desk {
    fn id(&self) -> &str {
        "desk"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.connection.subscribe()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        for (n, (chat, text)) in self.messages.iter().enumerate() {
            if sink.admit(Inbound::text(format!("m{n}"), chat.as_str(), text.as_str())).await.is_err() {
                return Ok(());
            }
        }
        append(&self.log, "all taken over").map_err(|error| not_written(&error))?;
        stop.cancelled().await;
        Ok(())
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let line = format!("{}\t{}", request.chat, request.content.readable_text());
        append(&self.sent, &line).map_err(|error| not_written(&error))?;
        Ok(SendReceipt { message: "sent".into() })
    }
}

fn not_written(error: &std::io::Error) -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::NotWritten, error.to_string())
}

pub(crate) fn append(path: &Path, line: &str) -> std::io::Result<()> {
    File::options().create(true).append(true).open(path)?.write_all(format!("{line}\n").as_bytes())
}

/// `block 5`: stands still with its thread for 5 s. `stall x`: so until the file `x` is there. `wait x`: lets others run
/// meanwhile. Each then replies with its text.
async fn handle(folder: PathBuf, log: PathBuf, c: Ctx) -> Result {
    let tell = |line: String| append(&log, &line);
    tell(format!("start {}", c.text()))?;
    match c.text().split_once(' ') {
        Some(("block", seconds)) => block(Duration::from_secs(seconds.parse()?)),
        Some(("stall", file)) => {
            while !folder.join(file).exists() {
                pause();
            }
        }
        Some(("wait", file)) => {
            while !folder.join(file).exists() {
                rest().await;
            }
        }
        _ => {}
    }
    let replied = c.reply(c.text()).await;
    match &replied {
        Ok(_) => tell(format!("replied {}", c.text()))?,
        Err(SendError::LeaseLost(lost)) => tell(format!("refused {:?}", lost.reason))?,
        Err(error) => tell(format!("failed {error}"))?,
    }
    replied?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a handler that blocks its thread is what is tested")]
fn block(time: Duration) {
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "polling for a file of another process has nothing to wait on")]
pub(crate) async fn rest() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

async fn run(settings: Settings, log: PathBuf) -> Result {
    let Settings { folder, instance, lease, messages, ticks } = settings;
    let store = SqliteStore::open(folder.join("bot.db")).await?;
    let mut durability = Durability::new(store.durability()).with_instance_id(instance.as_str());
    durability.poll = Duration::from_millis(100);
    (durability.inbox.lease, durability.outbox.lease) = (lease, lease);
    let (sent, told) = (folder.join("sent"), log.clone());
    let builder = match ticks {
        true => ticking(Bot::builder(), folder.clone(), &log),
        false => Bot::builder(),
    };
    let bot = builder
        .durability(durability)
        .store(store.clone())
        .provider(Desk {
            messages,
            sent,
            log: log.clone(),
            connection: watch::Sender::new(ConnectionState::Open),
        })
        .otherwise(move |c: Ctx| handle(folder.clone(), told.clone(), c))
        .build()?;
    let mut events = bot.events();
    let ended = bot.run().await;
    while let Ok(event) = events.try_recv() {
        append(&log, &format!("event {event}"))?;
    }
    let metrics = bot.metrics();
    append(&log, &format!("stale {} replayed {}", metrics.stale_leases, metrics.inbound_replayed))?;
    store.close().await?;
    ended
}

#[test]
#[ignore = "it is a process of other tests"]
fn process() {
    let settings: Settings =
        serde_json::from_str(&std::env::var(SETTINGS).expect("settings")).expect("settings");
    let name = std::env::var("BOTMESH_TEST_LOG").expect("a name");
    let log = settings.folder.join(format!("{name}.log"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        if let Err(error) = run(settings, log.clone()).await {
            append(&log, &format!("ended {error}")).expect("a log");
        }
    });
}
