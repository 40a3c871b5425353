//! A server on a thread of its own, with one runtime of one thread, as a small bot has.

use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use botmesh::core::CancellationToken;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

/// The path of the webhook.
pub(crate) const PATH: &str = "/telegram";

/// What Telegram would send with each post.
pub(crate) const SECRET: &str = "a-secret_of-256-bits";

pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

impl Served {
    /// Runs `serve` until [`end`](Self::end).
    pub(crate) fn start<F: Future<Output = ()>>(
        serve: impl FnOnce(TcpListener, CancellationToken) -> F + Send + 'static,
    ) -> Self {
        let stop = CancellationToken::new();
        let (ready, address) = channel();
        let stopped = stop.clone();
        let run = move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { serve(listen(&ready).await, stopped).await });
        };
        let thread = thread::Builder::new().name("server".to_owned()).spawn(run).unwrap();
        Self { address: address.recv().unwrap(), stop, thread }
    }

    pub(crate) fn end(self) {
        self.stop.cancel();
        self.thread.join().unwrap();
    }
}

async fn listen(ready: &Sender<SocketAddr>) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    ready.send(listener.local_addr().unwrap()).unwrap();
    listener
}
