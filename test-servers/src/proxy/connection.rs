//! A client's connection and the one to the server that stands for it.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::frames::{Frames, is_push};
use super::order::Order;
use super::pipe::Pipe;
use super::{Direction, End, Flow, Shared, spawn};

const DIRECTIONS: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

pub(super) struct Connection {
    client: Arc<TcpStream>,
    server: Arc<TcpStream>,
    to_server: Pipe,
    to_client: Pipe,
    /// One of its replies is lost: the client's end is closed when the server has carried out everything.
    loses_reply: AtomicBool,
    order: Mutex<Order>,
    threads: AtomicUsize,
}

impl Connection {
    pub(super) fn new(
        client: TcpStream,
        server: TcpStream,
        to_server: Flow,
        to_client: Flow,
    ) -> io::Result<Arc<Self>> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (client, server) = (Arc::new(client), Arc::new(server));
        Ok(Arc::new(Self {
            to_server: Pipe::new(Arc::clone(&client), Arc::clone(&server), to_server),
            to_client: Pipe::new(Arc::clone(&server), Arc::clone(&client), to_client),
            loses_reply: AtomicBool::new(false),
            order: Mutex::default(),
            threads: AtomicUsize::new(2 * DIRECTIONS.len()),
            client,
            server,
        }))
    }

    pub(super) fn pipe(&self, direction: Direction) -> &Pipe {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    /// Starts its four threads. The last to end removes the connection.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>) -> io::Result<()> {
        for direction in DIRECTIONS {
            self.start_thread(shared, "proxy-read", move |connection, shared| {
                connection.read(direction, shared);
            })?;
            self.start_thread(shared, "proxy-write", move |connection, shared| {
                connection.write(direction, shared);
            })?;
        }
        Ok(())
    }

    fn start_thread(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        name: &str,
        run: impl FnOnce(&Self, &Shared) + Send + 'static,
    ) -> io::Result<()> {
        let (connection, shared_too) = (Arc::clone(self), Arc::clone(shared));
        let started = spawn(name, move || {
            run(&connection, &shared_too);
            if connection.threads.fetch_sub(1, Ordering::SeqCst) == 1 {
                shared_too.remove(&connection);
            }
        });
        started.map(drop).inspect_err(|_| {
            self.cut();
            shared.remove(self);
        })
    }

    /// Both ends see the end.
    pub(super) fn cut(&self) {
        self.half_open(End::Client);
        self.close(End::Server);
    }

    pub(super) fn half_open(&self, closed: End) {
        self.to_server.break_off();
        self.to_client.break_off();
        self.close(closed);
    }

    fn close(&self, end: End) {
        let stream = match end {
            End::Client => &self.client,
            End::Server => &self.server,
        };
        // It fails only if it is closed already.
        drop(stream.shutdown(Shutdown::Both));
    }

    fn read(&self, direction: Direction, shared: &Shared) {
        match direction {
            Direction::ToServer => {
                let (mut seen, mut requests) = (Vec::new(), Frames::default());
                self.to_server.read(|bytes, passed| {
                    if shared.splits {
                        requests.push(bytes, |request| self.ask(request, passed, shared));
                    } else {
                        passed.extend_from_slice(bytes);
                    }
                    let loses = shared.loses_reply(&mut seen, bytes);
                    if loses {
                        self.loses_reply.store(true, Ordering::SeqCst);
                        self.to_client.break_off();
                    }
                    loses
                });
            }
            Direction::ToClient => {
                let mut replies = Frames::default();
                self.to_client.read(|bytes, passed| {
                    if shared.splits {
                        replies.push(bytes, |reply| self.reply(reply, shared));
                    } else {
                        passed.extend_from_slice(bytes);
                    }
                    false
                });
                if self.loses_reply.load(Ordering::SeqCst) {
                    shared.replies_lost.fetch_add(1, Ordering::Relaxed);
                    self.close(End::Client);
                }
            }
        }
    }

    fn ask(&self, request: &[u8], passed: &mut Vec<u8>, shared: &Shared) {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.answer_to(request) {
            Some(reply) => self.give(order.answered(reply)),
            None => {
                order.asked();
                passed.extend_from_slice(request);
            }
        }
    }

    /// Gives the client a reply of the server. Under the lock, so that no other one passes it.
    fn reply(&self, reply: &[u8], shared: &Shared) {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_push(reply) {
            self.give(reply.to_vec());
            self.give(order.replied());
        } else if !shared.drops_push() {
            self.give(reply.to_vec());
        }
    }

    fn give(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.to_client.push(bytes);
        }
    }

    fn write(&self, direction: Direction, shared: &Shared) {
        let delivered = match direction {
            Direction::ToServer => &shared.to_server,
            Direction::ToClient => &shared.to_client,
        };
        self.pipe(direction).write(delivered);
    }
}
