//! Messages per second, each of which locks and unlocks its chat: `botmesh-bench-rslock URL MESSAGES CHATS CALLERS`. Callers beyond
//! the number of chats share chats with others, and try until they have the lock.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rslock::{LockError, LockManager};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, messages, chats, callers] = &args[..] else { panic!("give URL, MESSAGES, CHATS and CALLERS") };
    let [messages, chats, callers] = [messages, chats, callers].map(|number| number.parse::<u64>().unwrap());
    let locks = LockManager::new(vec![url.as_str()]);
    let left = std::rc::Rc::new(Cell::new(messages));
    let begun = Instant::now();
    let tasks = tokio::task::LocalSet::new();
    for caller in 0..callers {
        let (locks, left) = (locks.clone(), std::rc::Rc::clone(&left));
        tasks.spawn_local(async move {
            let chat = format!("chat-{:07}", caller % chats);
            while left.get() > 0 {
                left.set(left.get() - 1);
                let lock = loop {
                    match locks.lock(chat.as_bytes(), Duration::from_secs(15)).await {
                        Ok(lock) => break lock,
                        Err(LockError::Unavailable) => {}
                        Err(error) => panic!("{error}"),
                    }
                };
                locks.unlock(&lock).await;
            }
        });
    }
    tasks.await;
    println!("{:.0}", messages as f64 / begun.elapsed().as_secs_f64());
}
