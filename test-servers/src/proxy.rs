//! A TCP proxy with faults.

mod connection;
mod frames;
mod order;
mod pipe;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::connection::Connection;
use crate::{Error, Result, failed};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From clients to the server: requests.
    ToServer,
    /// From the server to its clients: replies and pushes.
    ToClient,
}

/// What becomes of bytes, and of the end of a connection, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// They arrive.
    #[default]
    Pass,
    /// They arrive so much later, in order, at the rate at which they were sent.
    Delay(Duration),
    /// They arrive when this ends. The proxy keeps 1 MiB for each connection; then the sender has to wait.
    Hold,
    /// They never arrive, though their sender can go on. A connection that lost bytes stays silent in this direction until
    /// it is cut, as its stream has a hole.
    Drop,
}

/// What becomes of new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// They reach the server. If it does not listen, they are closed.
    #[default]
    Forward,
    /// They are closed at once.
    Close,
    /// They are open, but nothing answers, and the server does not see them. They stay so until they are cut.
    Silent,
}

/// One of the two ends of a connection through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client's.
    Client,
    /// The server's.
    Server,
}

/// What went through a proxy since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections that clients opened.
    pub accepted: u64,
    /// Those of them that are open now, on either side.
    pub open: u64,
    /// Bytes delivered to the server.
    pub to_server: u64,
    /// Bytes delivered to clients.
    pub to_client: u64,
    /// Replies lost by [`Proxy::lose_replies`].
    pub replies_lost: u64,
    /// Messages to subscribers lost by [`Proxy::drop_pushes`].
    pub pushes_lost: u64,
    /// Requests answered by [`Proxy::answer`].
    pub answered: u64,
}

/// A TCP proxy on the loopback interface, whose faults are switched while it runs. It ends when this is dropped, with all
/// of its connections.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    accepted: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    replies_lost: AtomicU64,
    pushes_lost: AtomicU64,
    answered: AtomicU64,
    /// It knows where a request and a reply ends.
    splits: bool,
}

struct State {
    upstream: SocketAddr,
    to_server: Flow,
    to_client: Flow,
    accept: Accept,
    lose: Option<Lose>,
    drops_pushes: bool,
    answer: Option<Answer>,
    connections: Vec<Arc<Connection>>,
    /// Accepted under [`Accept::Silent`].
    silent: Vec<TcpStream>,
    stopped: bool,
}

/// Which requests are to lose their replies.
struct Lose {
    request: Vec<u8>,
    times: usize,
}

/// Which requests the proxy answers, and how.
struct Answer {
    request: Vec<u8>,
    reply: Vec<u8>,
    times: usize,
}

impl Proxy {
    /// Starts one in front of the server at `upstream`, which need not be up yet.
    ///
    /// # Errors
    /// The system has no port or thread for it.
    pub fn start(upstream: SocketAddr) -> Result<Self> {
        Self::start_with(upstream, false)
    }

    /// As [`start`](Self::start), for a server that speaks the Redis protocol. Whole requests and replies go through it, so
    /// that [`drop_pushes`](Self::drop_pushes) can lose some of them and [`answer`](Self::answer) can stand for the server.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_for_redis(upstream: SocketAddr) -> Result<Self> {
        Self::start_with(upstream, true)
    }

    fn start_with(upstream: SocketAddr, splits: bool) -> Result<Self> {
        let what = "the proxy cannot be started";
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed(what))?;
        let address = listener.local_addr().map_err(failed(what))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                upstream,
                to_server: Flow::Pass,
                to_client: Flow::Pass,
                accept: Accept::Forward,
                lose: None,
                drops_pushes: false,
                answer: None,
                connections: Vec::new(),
                silent: Vec::new(),
                stopped: false,
            }),
            accepted: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            replies_lost: AtomicU64::new(0),
            pushes_lost: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            splits,
        });
        let accepting = Arc::clone(&shared);
        let acceptor = spawn("proxy-accept", move || accepting.accept(&listener)).map_err(failed(what))?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends new connections to another server. Those that exist stay where they are.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        self.shared.state().upstream = upstream;
    }

    /// What becomes of bytes in one direction from now on, on the connections there are and on new ones. What a connection
    /// has lost or been delayed before stays so.
    pub fn set(&self, direction: Direction, flow: Flow) {
        let mut state = self.shared.state();
        match direction {
            Direction::ToServer => state.to_server = flow,
            Direction::ToClient => state.to_client = flow,
        }
        for connection in &state.connections {
            connection.pipe(direction).set(flow);
        }
    }

    /// What becomes of new connections from now on.
    pub fn set_accept(&self, accept: Accept) {
        self.shared.state().accept = accept;
    }

    /// Ends all faults. Connections that a fault has broken stay broken until they are cut.
    pub fn heal(&self) {
        self.set(Direction::ToServer, Flow::Pass);
        self.set(Direction::ToClient, Flow::Pass);
        let mut state = self.shared.state();
        state.accept = Accept::Forward;
        state.lose = None;
        state.drops_pushes = false;
        state.answer = None;
    }

    /// Closes every connection at both ends; both see its end. What is on its way is lost.
    pub fn cut(&self) {
        let mut state = self.shared.state();
        state.silent.clear();
        for connection in &state.connections {
            connection.cut();
        }
    }

    /// Closes one end of every connection, and leaves the other open and unanswered: its owner does not learn of it. New
    /// connections are not touched.
    pub fn half_open(&self, closed: End) {
        for connection in &self.shared.state().connections {
            connection.half_open(closed);
        }
    }

    /// The next `times` requests that contain `request` reach the server and are carried out, but their replies are lost,
    /// and then the connection is closed at the client's end. What else was to come on that connection is lost with it. Bytes
    /// are compared as they are sent: `EVALSHA` does not find `evalsha`. Calling it again replaces what was asked before.
    pub fn lose_replies(&self, request: impl Into<Vec<u8>>, times: usize) {
        let request = request.into();
        let wanted = !request.is_empty() && times > 0;
        self.shared.state().lose = wanted.then_some(Lose { request, times });
    }

    /// From now on, or no more, subscribers get no messages (`message`, `pmessage`, `smessage`), while all else arrives:
    /// replies and the confirmations of subscriptions too.
    ///
    /// # Errors
    /// It was not started with [`start_for_redis`](Self::start_for_redis).
    pub fn drop_pushes(&self, drops: bool) -> Result {
        self.shared.must_split()?;
        self.shared.state().drops_pushes = drops;
        Ok(())
    }

    /// The next `times` requests that contain `request` do not reach the server. The proxy gives `reply` in its place, which
    /// is sent as it is, such as `-LOADING it starts` and the end of a line. Bytes are compared as they are sent. Calling it
    /// again replaces what was asked before.
    ///
    /// # Errors
    /// It was not started with [`start_for_redis`](Self::start_for_redis).
    pub fn answer(&self, request: impl Into<Vec<u8>>, reply: impl Into<Vec<u8>>, times: usize) -> Result {
        self.shared.must_split()?;
        let answer = Answer { request: request.into(), reply: reply.into(), times };
        let wanted = !answer.request.is_empty() && times > 0;
        self.shared.state().answer = wanted.then_some(answer);
        Ok(())
    }

    /// What went through it so far.
    pub fn traffic(&self) -> Traffic {
        let shared = &self.shared;
        let state = shared.state();
        let open = state.connections.len() + state.silent.len();
        Traffic {
            accepted: shared.accepted.load(Ordering::Relaxed),
            open: open as u64,
            to_server: shared.to_server.load(Ordering::Relaxed),
            to_client: shared.to_client.load(Ordering::Relaxed),
            replies_lost: shared.replies_lost.load(Ordering::Relaxed),
            pushes_lost: shared.pushes_lost.load(Ordering::Relaxed),
            answered: shared.answered.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.cut();
        // Wakes the acceptor. It fails only if the listener is gone.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join());
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let mut state = self.state();
            if state.stopped {
                return;
            }
            let Ok(client) = client else { continue };
            self.accepted.fetch_add(1, Ordering::Relaxed);
            match state.accept {
                Accept::Close => {}
                Accept::Silent => state.silent.push(client),
                Accept::Forward => {
                    let (shared, upstream) = (Arc::clone(self), state.upstream);
                    // Connecting may take long. Without a thread for it, or a server, the connection is closed.
                    drop(spawn("proxy-connect", move || drop(shared.connect(client, upstream))));
                }
            }
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
        let server = TcpStream::connect_timeout(&upstream, CONNECT_TIMEOUT)?;
        let mut state = self.state();
        if state.stopped {
            return Ok(());
        }
        let connection = Connection::new(client, server, state.to_server, state.to_client)?;
        state.connections.push(Arc::clone(&connection));
        drop(state);
        connection.start(self)
    }

    /// Called once nothing can come on it any more.
    fn remove(&self, connection: &Arc<Connection>) {
        self.state().connections.retain(|other| !Arc::ptr_eq(other, connection));
    }

    fn must_split(&self) -> Result {
        if self.splits {
            return Ok(());
        }
        Err(Error(
            "this proxy cannot tell one request or reply from another: use Proxy::start_for_redis".into(),
        ))
    }

    /// What the proxy answers in place of the server.
    fn answer_to(&self, request: &[u8]) -> Option<Vec<u8>> {
        let mut state = self.state();
        let answer = state.answer.as_mut()?;
        if !request.windows(answer.request.len()).any(|window| window == answer.request) {
            return None;
        }
        let reply = answer.reply.clone();
        answer.times -= 1;
        if answer.times == 0 {
            state.answer = None;
        }
        self.answered.fetch_add(1, Ordering::Relaxed);
        Some(reply)
    }

    fn drops_push(&self) -> bool {
        let drops = self.state().drops_pushes;
        self.pushes_lost.fetch_add(u64::from(drops), Ordering::Relaxed);
        drops
    }

    /// Whether there is now a request among `seen` and `bytes` that is to lose its reply. `seen` is what came before, as
    /// far as it may be the beginning of one.
    fn loses_reply(&self, seen: &mut Vec<u8>, bytes: &[u8]) -> bool {
        let mut state = self.state();
        let Some(lose) = &mut state.lose else {
            seen.clear();
            return false;
        };
        seen.extend_from_slice(bytes);
        if !seen.windows(lose.request.len()).any(|window| window == lose.request) {
            seen.drain(..seen.len().saturating_sub(lose.request.len() - 1));
            return false;
        }
        lose.times -= 1;
        if lose.times == 0 {
            state.lose = None;
        }
        true
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(run)
}
