//! The connections of a listener: bounded in their number, and in how long each may stay without a request.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use botmesh_core::CancellationToken;
use botmesh_core::time::Clock;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// How long to wait when no connection can be taken, as when the process has too many files open.
const AGAIN: Duration = Duration::from_secs(1);

/// What clients may take.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// How many connections there may be.
    pub(crate) connections: usize,
    /// How long the head of a request may take, and the wait for it.
    pub(crate) headers_within: Duration,
}

/// Takes connections until it is `over`. Those that are left finish the request that is under way.
#[expect(
    clippy::disallowed_methods,
    reason = "the set ends them with the server, whose caller has no spawner"
)]
pub(crate) async fn take(
    listener: TcpListener,
    routes: Router,
    bounds: Bounds,
    clock: &dyn Clock,
    over: &CancellationToken,
) -> JoinSet<()> {
    let places = Arc::new(Semaphore::new(bounds.connections.clamp(1, Semaphore::MAX_PERMITS)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(bounds.headers_within);
    // Whoever closes its side still gets the answer; and nobody reads beside a post that is under way.
    http.half_close(true);
    let mut connections = JoinSet::new();
    loop {
        // Whoever comes when there is no place waits in the system's queue.
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = over.cancelled() => return connections,
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        match (place, accepted) {
            (Ok(place), Ok((stream, _))) => {
                connections.spawn(serve(http.clone(), stream, routes.clone(), over.clone(), place));
            }
            (_, Err(error)) if !is_of_client(&error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "no connection can be taken");
                tokio::select! {
                    () = over.cancelled() => return connections,
                    () = clock.sleep(AGAIN) => {}
                }
            }
            _ => {}
        }
    }
}

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn serve(
    http: http1::Builder,
    stream: TcpStream,
    routes: Router,
    over: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut connection = pin!(connection.with_upgrades());
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = over.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = &error as &dyn std::error::Error, "a connection ended early");
    }
}
