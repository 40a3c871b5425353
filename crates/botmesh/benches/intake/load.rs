//! Whoever posts: connections that are kept, on a thread of their own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;

use crate::served::{PATH, SECRET, Served};

/// How long a round runs before it is measured, once every connection had its first 200.
const WARM_UP: Duration = Duration::from_millis(500);

/// Each connection posts for so many chats in turn.
const CHATS: u64 = 16;

/// Before a round is measured its phase is 0.
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// What a round came to.
pub(crate) struct Measured {
    /// Posts per second.
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// Of the processor's time, what each post took of all threads but the one that posts.
    pub(crate) cpu: Duration,
}

/// The processor's time of the threads that do not post.
fn cpu() -> Duration {
    let of = |clock| Duration::try_from(clock_gettime(clock)).unwrap();
    of(ClockId::ProcessCPUTime).saturating_sub(of(ClockId::ThreadCPUTime))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// One round, after which the server ends.
pub(crate) fn run(served: Served, connections: u32, length: Duration) -> Measured {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let measured = runtime.block_on(round(served.address, connections, length));
    drop(runtime);
    served.end();
    measured
}

/// What the connections of a round share.
#[derive(Default)]
struct Shared {
    phase: AtomicU8,
    /// The last update that was posted.
    updates: AtomicU64,
    /// How many connections had a 200.
    warm: AtomicU32,
}

#[expect(clippy::disallowed_methods, reason = "the load comes from outside of the bot and its spawner")]
async fn round(address: SocketAddr, connections: u32, length: Duration) -> Measured {
    let shared = Arc::new(Shared::default());
    let tasks: Vec<_> = (0..connections)
        .map(|number| tokio::spawn(post(address, number.into(), Arc::clone(&shared))))
        .collect();
    while shared.warm.load(Ordering::Relaxed) < connections {
        sleep(Duration::from_millis(10)).await;
    }
    sleep(WARM_UP).await;
    let phase = &shared.phase;
    phase.store(MEASURED, Ordering::Relaxed);
    let (begun, used) = (now(), cpu());
    sleep(length).await;
    phase.store(OVER, Ordering::Relaxed);
    let (elapsed, used) = (begun.elapsed(), cpu().saturating_sub(used));
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.unwrap());
    }
    assert!(!took.is_empty(), "no post was answered in time; give more seconds");
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    let (posts, seconds) = (took.len() as f64, elapsed.as_secs_f64());
    Measured { rate: posts / seconds, p50: at(0.5), p99: at(0.99), cpu: used.div_f64(posts) }
}

/// How long each post took that was answered while it was measured.
async fn post(address: SocketAddr, connection: u64, shared: Arc<Shared>) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut took, mut buffer, mut warm) = (Vec::new(), vec![0; 1024], false);
    for number in 0.. {
        // Telegram numbers the updates of a bot one after the other, whatever their chats.
        let update = 1 + shared.updates.fetch_add(1, Ordering::Relaxed);
        let request = request(update, connection * CHATS + number % CHATS, number);
        let begun = now();
        stream.write_all(request.as_bytes()).await.unwrap();
        let status = answer(&mut stream, &mut buffer).await;
        // While the bot starts it says 503.
        assert!(status == "200" || !warm && status == "503", "{status}");
        if status == "200" && !std::mem::replace(&mut warm, true) {
            shared.warm.fetch_add(1, Ordering::Relaxed);
        }
        let phase = shared.phase.load(Ordering::Relaxed);
        match phase {
            MEASURED => took.push(begun.elapsed()),
            OVER => break,
            _ => {}
        }
    }
    took
}

/// The status of an answer, which has no body.
async fn answer<'a>(stream: &mut TcpStream, buffer: &'a mut [u8]) -> &'a str {
    let mut filled = 0;
    while !buffer[..filled].ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut buffer[filled..]).await.unwrap();
        assert!(read > 0, "the server hung up");
        filled += read;
    }
    std::str::from_utf8(&buffer[9..12]).unwrap()
}

fn request(update: u64, chat: u64, number: u64) -> String {
    let chat = 1_000_000 + chat;
    let body = format!(
        r#"{{"update_id":{update},"message":{{"message_id":{number},"from":{{"id":{chat},"is_bot":false,"first_name":"Ana","last_name":"Lima","username":"ana_lima","language_code":"pt"}},"chat":{{"id":{chat},"first_name":"Ana","last_name":"Lima","username":"ana_lima","type":"private"}},"date":1760000000,"text":"I would like to move my appointment to Thursday."}}}}"#
    );
    let length = body.len();
    format!(
        "POST {PATH} HTTP/1.1\r\nHost: bot\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         X-Telegram-Bot-Api-Secret-Token: {SECRET}\r\n\r\n{body}"
    )
}
