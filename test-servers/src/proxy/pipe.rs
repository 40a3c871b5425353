//! One direction of a connection: what was read, and when it may be written.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Flow;

/// What is kept while nothing can be written.
const LARGEST_QUEUE: usize = 1 << 20;
const CHUNK: usize = 16 << 10;

pub(super) struct Pipe {
    from: Arc<TcpStream>,
    to: Arc<TcpStream>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    flow: Flow,
    /// Nothing of what comes is delivered any more.
    broken: bool,
    /// Nothing more comes.
    ended: bool,
    items: VecDeque<Item>,
    bytes: usize,
}

/// Bytes, or with none the end of the stream.
struct Item {
    due: Instant,
    bytes: Vec<u8>,
}

impl Pipe {
    pub(super) fn new(from: Arc<TcpStream>, to: Arc<TcpStream>, flow: Flow) -> Self {
        let queue = Queue { flow, broken: false, ended: false, items: VecDeque::new(), bytes: 0 };
        Self { from, to, queue: Mutex::new(queue), changed: Condvar::new() }
    }

    pub(super) fn set(&self, flow: Flow) {
        self.queue().flow = flow;
        self.changed.notify_all();
    }

    /// From now on nothing is delivered. What waits is lost too.
    pub(super) fn break_off(&self) {
        let mut queue = self.queue();
        queue.broken = true;
        queue.items.clear();
        queue.bytes = 0;
        self.changed.notify_all();
    }

    /// Takes in what comes until the stream ends. `inspect` sees each piece before it is on its way, and writes what becomes
    /// of it into a buffer; if it gives true, that is the last.
    pub(super) fn read(&self, mut inspect: impl FnMut(&[u8], &mut Vec<u8>) -> bool) {
        let mut buffer = vec![0; CHUNK];
        let mut last = false;
        loop {
            let length = (&*self.from).read(&mut buffer).unwrap_or(0);
            // After the last piece, what else comes is taken from its sender and left.
            if !last {
                let mut passed = Vec::new();
                last = length == 0 || inspect(&buffer[..length], &mut passed);
                if !passed.is_empty() {
                    self.push(passed);
                }
                if last {
                    self.push(Vec::new());
                }
            }
            if length == 0 {
                self.queue().ended = true;
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Takes in bytes, or with none the end of the stream.
    #[expect(clippy::disallowed_methods, reason = "it delays real connections")]
    pub(super) fn push(&self, bytes: Vec<u8>) {
        let now = Instant::now();
        let mut queue = self.queue();
        while queue.bytes >= LARGEST_QUEUE && !queue.broken {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.broken |= queue.flow == Flow::Drop;
        if queue.broken {
            return;
        }
        let delay = if let Flow::Delay(delay) = queue.flow { delay } else { Duration::ZERO };
        // Never before what came before it.
        let earliest = queue.items.back().map_or(now, |item| item.due);
        queue.bytes += bytes.len();
        queue.items.push_back(Item { due: earliest.max(now + delay), bytes });
        self.changed.notify_all();
    }

    /// Delivers what was taken in, until the end of the stream.
    pub(super) fn write(&self, delivered: &AtomicU64) {
        while let Some(bytes) = self.next() {
            if bytes.is_empty() {
                // It fails only if the other side is closed already.
                drop(self.to.shutdown(Shutdown::Write));
                return;
            }
            // Before, so that who has read them finds them counted.
            delivered.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if (&*self.to).write_all(&bytes).is_err() {
                // Its owner has closed it; whoever sends is told by the other pipe.
                self.break_off();
                return;
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "it delays real connections")]
    fn next(&self) -> Option<Vec<u8>> {
        let mut queue = self.queue();
        loop {
            if queue.ended && queue.items.is_empty() {
                return None;
            }
            let now = Instant::now();
            let wait = match queue.items.front() {
                Some(item) if queue.flow != Flow::Hold && item.due <= now => break,
                Some(item) if queue.flow != Flow::Hold => Some(item.due - now),
                _ => None,
            };
            queue = match wait {
                Some(wait) => {
                    self.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let item = queue.items.pop_front()?;
        queue.bytes -= item.bytes.len();
        self.changed.notify_all();
        Some(item.bytes)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
