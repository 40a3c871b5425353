//! Callers that take turns as fast as they get them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use botmesh_core::coordinator::Coordinator as _;
use botmesh_redis_store::RedisCoordinator;

use crate::host::{cpu, now, sleep, spawn};

/// How long a round runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(250);

/// One caller. Callers never meet in a chat.
pub(crate) trait Caller: Send + 'static {
    /// Handles a message of a chat: has the chat to itself, and gives it back.
    fn message(&mut self, chat: &str) -> impl Future<Output = ()> + Send;

    /// Waits for what is still under way.
    fn finish(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Takes a turn for each message.
#[derive(Clone)]
pub(crate) struct Turns(pub(crate) RedisCoordinator);

impl Caller for Turns {
    async fn message(&mut self, chat: &str) {
        let turn = self.0.enter(chat).await.unwrap().granted().await.unwrap();
        assert_eq!(turn.check(), Ok(()));
        turn.release();
    }
}

/// What a round came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    /// Messages per second.
    pub(crate) rate: f64,
    /// Microseconds of this process's processors a message.
    pub(crate) cpu: f64,
    /// All messages of the round, those before the measured time too.
    pub(crate) messages: u64,
}

/// Which chats a caller goes through.
#[derive(Clone, Copy)]
pub(crate) struct Chats {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

pub(crate) fn chat(number: u64) -> String {
    format!("chat-{number:07}")
}

impl Chats {
    /// As many for each caller, all of them distinct.
    pub(crate) fn split(self, callers: usize) -> impl Iterator<Item = Self> {
        let count = (self.count / callers as u64).max(1);
        (0..callers as u64).map(move |caller| Self { first: self.first + caller * count, count })
    }

    /// The chat of a caller's next message: all in turn, far apart, so that no memory is warm from the one before.
    fn at(self, message: u64) -> String {
        const STRIDE: u64 = 7919;
        chat(self.first + (message % self.count).wrapping_mul(STRIDE) % self.count)
    }
}

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// Lets callers go through their chats for as long.
pub(crate) async fn round<C: Caller>(callers: Vec<C>, chats: Chats, length: Duration) -> Measured {
    let phase = Arc::new(AtomicU8::new(WARM));
    let all = Arc::new(AtomicU64::new(0));
    let parts: Vec<_> = chats.split(callers.len()).collect();
    let tasks: Vec<_> = callers
        .into_iter()
        .zip(parts)
        .map(|(mut caller, chats)| {
            let (phase, all) = (Arc::clone(&phase), Arc::clone(&all));
            spawn(async move {
                let (mut message, mut measured) = (0, 0_u64);
                while phase.load(Ordering::Relaxed) != OVER {
                    caller.message(&chats.at(message)).await;
                    message += 1;
                    measured += u64::from(phase.load(Ordering::Relaxed) == MEASURED);
                }
                caller.finish().await;
                all.fetch_add(message, Ordering::Relaxed);
                measured
            })
        })
        .collect();
    sleep(WARM_UP).await;
    let (begun, used) = (now(), cpu());
    phase.store(MEASURED, Ordering::Relaxed);
    sleep(length).await;
    let (elapsed, used) = (begun.elapsed(), cpu() - used);
    phase.store(OVER, Ordering::Relaxed);
    let mut measured = 0;
    for task in tasks {
        measured += task.await.unwrap();
    }
    let cpu = used.as_secs_f64() * 1e6 / measured as f64;
    let messages = all.load(Ordering::Relaxed);
    Measured { rate: measured as f64 / elapsed.as_secs_f64(), cpu, messages }
}

/// One message in each of the chats.
pub(crate) async fn visit<C: Caller>(callers: Vec<C>, chats: Chats) {
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = callers
        .into_iter()
        .map(|mut caller| {
            let next = Arc::clone(&next);
            spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= chats.count {
                        return caller.finish().await;
                    }
                    caller.message(&chat(chats.first + number)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// So many messages altogether. Each caller stays in one chat, which it shares with others if there are more callers. How long
/// they took, in seconds.
pub(crate) async fn drain<C: Caller>(callers: Vec<C>, chats: u64, messages: u64) -> f64 {
    let taken = Arc::new(AtomicU64::new(0));
    let begun = now();
    let tasks: Vec<_> = callers
        .into_iter()
        .zip(0..)
        .map(|(mut caller, number)| {
            let taken = Arc::clone(&taken);
            spawn(async move {
                let chat = chat(number % chats);
                while taken.fetch_add(1, Ordering::Relaxed) < messages {
                    caller.message(&chat).await;
                }
                caller.finish().await;
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    begun.elapsed().as_secs_f64()
}
