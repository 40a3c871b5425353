//! One listener for the webhooks of one or several bots, and for those who ask how they are.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use botmesh_core::CancellationToken;
use botmesh_core::host::{Health, Hosted};
use botmesh_core::time::{Clock, SystemClock};
use futures_util::future::join_all;
use thiserror::Error;
use tokio::net::TcpListener;

use crate::connections::{Bounds, take};

/// Runs a bot and serves its webhook until it ends: [`Server`] with one bot.
///
/// # Errors
/// As [`Server::serve`].
pub async fn serve(bot: impl Hosted, webhook: Router, listen: SocketAddr) -> Result<(), ServeError> {
    Server::new().with_bot(bot, webhook).serve(listen).await
}

/// Why bots are not served any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Nobody can listen there; no bot was run.
    #[error("cannot listen on {address}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A bot failed for good.
    #[error("a bot failed")]
    Bot(#[source] Box<dyn StdError + Send + Sync>),
}

/// Bots and their webhooks on one listener. Each webhook has its own path.
///
/// Beside them, `GET /live` answers 200 until a bot has ended, and `GET /ready` answers 200 while all of them take messages;
/// 503 otherwise.
#[must_use]
pub struct Server {
    routes: Router,
    bots: Vec<Arc<dyn Hosted>>,
    drain: Duration,
    bounds: Bounds,
    clock: Arc<dyn Clock>,
}

impl Server {
    /// A server without bots.
    pub fn new() -> Self {
        Self {
            routes: Router::new(),
            bots: Vec::new(),
            drain: Duration::from_secs(10),
            bounds: Bounds { connections: 512, headers_within: Duration::from_secs(75) },
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// With a bot, which [`serve`](Self::serve) runs, and its webhook: the `router()` of its provider.
    ///
    /// # Panics
    /// If two routers have the same path.
    pub fn with_bot(mut self, bot: impl Hosted, webhook: Router) -> Self {
        self.bots.push(Arc::new(bot));
        self.with_routes(webhook)
    }

    /// With routes of the application's own. Their handlers run to their end also if the client goes away meanwhile, and keep its
    /// connection as long: give those that wait a limit, such as tower's timeout layer.
    ///
    /// # Panics
    /// If two routers have the same path.
    pub fn with_routes(mut self, routes: Router) -> Self {
        self.routes = self.routes.merge(routes);
        self
    }

    /// How long posts may take that are under way when the bots have ended. Default 10 s.
    pub fn with_drain(mut self, limit: Duration) -> Self {
        self.drain = limit;
        self
    }

    /// How long a client may take for the headers of a request. A connection without a request is closed after it, too: make it
    /// longer than what is in front keeps idle connections. Default 75 s.
    pub fn with_headers_within(mut self, limit: Duration) -> Self {
        self.bounds.headers_within = limit;
        self
    }

    /// How many connections there may be; 0 counts as 1. More wait until one ends. Default 512.
    pub fn with_max_connections(mut self, count: usize) -> Self {
        self.bounds.connections = count;
        self
    }

    /// Listens, runs the bots, and returns when all of them have ended and what is under way is answered. While a bot stops,
    /// its posts are answered with 503, so that another replica gets them.
    ///
    /// # Errors
    /// [`ServeError::Bind`], and [`ServeError::Bot`] with the first error of a bot, after the others have ended too.
    ///
    /// # Cancel safety
    /// Dropping the future drops the bots' runs, the listener and its connections.
    pub async fn serve(self, listen: SocketAddr) -> Result<(), ServeError> {
        let bind = TcpListener::bind(listen).await;
        self.serve_on(bind.map_err(|source| ServeError::Bind { address: listen, source })?).await
    }

    /// As [`serve`](Self::serve), on a listener of the caller's.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub async fn serve_on(self, listener: TcpListener) -> Result<(), ServeError> {
        let Self { routes, bots, drain, bounds, clock } = self;
        let over = CancellationToken::new();
        let routes = routes.merge(probes(&bots));
        let run = async {
            let ended = join_all(bots.iter().map(|bot| bot.run())).await;
            over.cancel();
            ended.into_iter().collect::<Result<(), _>>()
        };
        let serve = async {
            let mut connections = take(listener, routes, bounds, &*clock, &over).await;
            tokio::select! {
                () = async { while connections.join_next().await.is_some() {} } => {}
                () = clock.sleep(drain) => tracing::warn!("posts that were under way are cut"),
            }
        };
        let (ended, ()) = tokio::join!(run, serve);
        ended.map_err(ServeError::Bot)
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("bots", &self.bots.len()).finish_non_exhaustive()
    }
}

fn probes(bots: &[Arc<dyn Hosted>]) -> Router {
    let probe = |healthy: fn(Health) -> bool| {
        let bots = bots.to_vec();
        get(move || {
            let fine = bots.iter().all(|bot| healthy(bot.health()));
            std::future::ready(if fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
        })
    };
    Router::new().route("/live", probe(|health| health.live)).route("/ready", probe(|health| health.ready))
}
