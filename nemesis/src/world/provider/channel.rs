//! A channel that wants one connection and cannot prevent two: it delivers every message on each of them until one replica
//! has taken it over, and knows a send again by its token.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Lines, real, write_line};
use crate::history::{Event, Recorder, now};
use crate::link::{Ack, Frame, Post, Posted};

pub(super) struct Channel {
    history: Arc<Recorder>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    frames: Vec<Frame>,
    /// When each was taken over.
    taken: Vec<Option<u64>>,
    answered: HashSet<u64>,
    /// By token, the channel's id of what was said.
    posts: HashMap<String, String>,
    open: Vec<Arc<Peer>>,
    stopped: bool,
}

/// A replica at the other end of a connection.
struct Peer {
    replica: String,
    name: String,
    n: u64,
    pid: u32,
    stream: TcpStream,
}

impl Peer {
    /// It has closed its end, or its process is gone.
    fn is_gone(&self) -> bool {
        let mut ends = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
            && ends[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }
}

impl Channel {
    pub(super) fn new(history: Arc<Recorder>) -> Self {
        Self { history, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn say(&self, chat: &str) -> u64 {
        let mut state = self.state();
        let id = state.frames.len() as u64;
        state.frames.push(Frame { id, chat: chat.to_owned() });
        state.taken.push(None);
        self.changed.notify_all();
        id
    }

    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let state = self.state();
        (state.frames.len(), state.taken.iter().flatten().count(), state.posts.len())
    }

    /// How many messages are still to be taken over, or to be answered if they were not taken over in a time that may be lost.
    pub(super) fn owed(&self, lost: &[(u64, u64)]) -> usize {
        let state = self.state();
        let is_lost = |at: u64| lost.iter().any(|(from, to)| (*from..=*to).contains(&at));
        let messages = state.frames.iter().zip(&state.taken);
        let is_owed = |(frame, taken): &(&Frame, &Option<u64>)| {
            taken.is_none_or(|at| !state.answered.contains(&frame.id) && !is_lost(at))
        };
        messages.filter(is_owed).count()
    }

    pub(super) fn connected(&self) -> Option<String> {
        match &self.state().open[..] {
            [one] if !one.is_gone() => Some(one.replica.clone()),
            _ => None,
        }
    }

    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// The same token again is the same message.
    pub(super) fn post(&self, Post { chat, text, key }: Post) -> Posted {
        let mut state = self.state();
        let next = format!("m{}", state.posts.len());
        if let Some(message) = state.posts.get(&key) {
            return Posted { message: message.clone() };
        }
        state.posts.insert(key.clone(), next.clone());
        let id = text.rsplit(' ').next().and_then(|id| id.parse().ok()).unwrap_or(u64::MAX);
        state.answered.insert(id);
        self.history.record(Event::Reply { chat, id, key });
        Posted { message: next }
    }

    /// Serves a connection until it ends.
    pub(super) fn serve(
        self: &Arc<Self>,
        mut lines: Lines,
        replica: String,
        name: String,
        n: u64,
        pid: u32,
    ) -> io::Result<()> {
        let stream = lines.stream.get_ref().try_clone()?;
        let peer = Arc::new(Peer { replica, name, n, pid, stream });
        self.opened(&peer);
        let (channel, receiver) = (Arc::clone(self), Arc::clone(&peer));
        let delivers = real::spawn("provider-deliver", move || drop(channel.deliver(&receiver)));
        while let Ok(Some(Ack { id })) = lines.read() {
            self.take(id);
        }
        let mut state = self.state();
        if state.open.iter().any(|other| Arc::ptr_eq(other, &peer)) {
            state.open.retain(|other| !Arc::ptr_eq(other, &peer));
            self.closed(&peer);
        }
        drop(state);
        self.changed.notify_all();
        // Wakes the other thread. It fails only if the connection is gone.
        drop(peer.stream.shutdown(Shutdown::Both));
        delivers.map(|delivers| drop(delivers.join()))
    }

    /// Delivers what nobody has taken over, in order.
    fn deliver(&self, peer: &Arc<Peer>) -> io::Result<()> {
        let (mut next, mut stream) = (0, peer.stream.try_clone()?);
        loop {
            let mut state = self.state();
            let frame = loop {
                if state.stopped || !state.open.iter().any(|other| Arc::ptr_eq(other, peer)) {
                    return Ok(());
                }
                match state.taken.iter().skip(next).position(Option::is_none) {
                    Some(skipped) => break state.frames[next + skipped].clone(),
                    None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            next = usize::try_from(frame.id).unwrap_or(usize::MAX) + 1;
            write_line(&mut stream, &frame)?;
        }
    }

    fn take(&self, id: u64) {
        let mut state = self.state();
        let Some(place) = usize::try_from(id).ok().filter(|place| *place < state.taken.len()) else { return };
        if state.taken[place].is_none() {
            state.taken[place] = Some(now());
            let chat = state.frames[place].chat.clone();
            self.history.record(Event::Message { chat, id });
        }
    }

    fn opened(&self, peer: &Arc<Peer>) {
        let mut state = self.state();
        // What has ended before this one began is told first, whichever thread is faster.
        state.open.retain(|other| {
            let gone = other.is_gone();
            if gone {
                self.closed(other);
            }
            !gone
        });
        state.open.push(Arc::clone(peer));
        let (name, n, peer_pid) = (peer.name.clone(), peer.n, peer.pid);
        self.history.record(Event::TransportOpen { name, n, peer_pid });
    }

    fn closed(&self, peer: &Peer) {
        let (name, n, peer_pid) = (peer.name.clone(), peer.n, peer.pid);
        self.history.record(Event::TransportClosed { name, n, peer_pid });
    }
}
