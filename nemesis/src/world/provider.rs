//! What the replicas act upon: a resource that compares fences, and a channel. They answer to every replica, also to one
//! that has lost its turn: what such a one does is to be seen here.

mod channel;

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::channel::Channel;
use super::real;
use crate::history::{Event, Recorder};
use crate::link::{Hello, Verdict, Write};

/// Listens until it is dropped.
pub struct Provider {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    history: Arc<Recorder>,
    stopped: AtomicBool,
    /// Of each chat, the last write that was taken.
    writes: Mutex<HashMap<String, Last>>,
    accepted: AtomicU64,
    refused: AtomicU64,
    /// Writes that arrived, by replica.
    arrived: Mutex<HashMap<String, u64>>,
    channel: Arc<Channel>,
}

/// The last write of a chat that the resource took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Last {
    /// Its fence.
    pub n: u64,
    /// Its session.
    pub sid: String,
    /// The replica that wrote.
    pub replica: String,
}

impl Provider {
    pub(super) fn start(history: Arc<Recorder>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            channel: Arc::new(Channel::new(Arc::clone(&history))),
            history,
            stopped: AtomicBool::new(false),
            writes: Mutex::default(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            arrived: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        real::spawn("provider", move || accepting.accept(&listener))?;
        Ok(Self { shared, address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes that the resource took, and those that it refused.
    pub fn writes(&self) -> (u64, u64) {
        (self.shared.accepted.load(Ordering::Relaxed), self.shared.refused.load(Ordering::Relaxed))
    }

    /// Writes of a replica that arrived, whether or not they were taken.
    pub fn arrived(&self, replica: &str) -> u64 {
        self.shared.arrived().get(replica).copied().unwrap_or(0)
    }

    /// The last write of a chat that the resource took.
    pub fn last(&self, chat: &str) -> Option<Last> {
        self.shared.writes().get(chat).cloned()
    }

    /// Users write: a message more in the chat. Its number.
    pub fn say(&self, chat: &str) -> u64 {
        self.shared.channel.say(chat)
    }

    /// Messages that users wrote, those that were taken over, and replies.
    pub fn messages(&self) -> (usize, usize, usize) {
        self.shared.channel.counts()
    }

    /// How many messages are still to be taken over, or to be answered: those that were taken over in one of these times may be lost.
    pub(super) fn owed(&self, lost: &[(u64, u64)]) -> usize {
        self.shared.channel.owed(lost)
    }

    /// The replica that is connected to the channel, if it is exactly one.
    pub fn connected(&self) -> Option<String> {
        self.shared.channel.connected()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.channel.stop();
        // Wakes the one that accepts.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn writes(&self) -> MutexGuard<'_, HashMap<String, Last>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrived(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let shared = Arc::clone(self);
            // A replica whose connection fails tries again.
            drop(real::spawn("provider-connection", move || drop(shared.serve(stream))));
        }
    }

    fn serve(self: &Arc<Self>, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut lines = Lines::new(stream);
        match lines.read()? {
            Some(Hello::Resource { replica }) => {
                while let Some(write) = lines.read()? {
                    let accepted = self.write(&replica, write);
                    lines.write(&Verdict { accepted })?;
                }
                Ok(())
            }
            Some(Hello::Transport { replica, name, n, pid }) => {
                self.channel.serve(lines, replica, name, n, pid)
            }
            Some(Hello::Posts { .. }) => {
                while let Some(post) = lines.read()? {
                    let posted = self.channel.post(post);
                    lines.write(&posted)?;
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes what has a larger fence than everything before, or the same one of the same session.
    fn write(&self, replica: &str, Write { chat, n, sid }: Write) -> bool {
        let mut writes = self.writes();
        let last = writes.entry(chat.clone()).or_default();
        let accepted = n > last.n || (n == last.n && sid == last.sid);
        if accepted {
            *last = Last { n, sid: sid.clone(), replica: replica.to_owned() };
        }
        // Under the lock, so that the history has the order of the resource.
        self.history.record(Event::Write { chat, n, sid, accepted });
        drop(writes);
        *self.arrived().entry(replica.to_owned()).or_default() += 1;
        let count = if accepted { &self.accepted } else { &self.refused };
        count.fetch_add(1, Ordering::Relaxed);
        accepted
    }
}

/// Lines of JSON on one connection.
struct Lines {
    stream: BufReader<TcpStream>,
}

impl Lines {
    fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    fn read<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }

    fn write(&mut self, message: &impl Serialize) -> io::Result<()> {
        write_line(self.stream.get_mut(), message)
    }
}

fn write_line(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}
