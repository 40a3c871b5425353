//! The bare program: axum, and one thread that commits everything that waits in one transaction.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use botmesh_webhook::axum::body::{Body, to_bytes};
use botmesh_webhook::axum::extract::{Request, State};
use botmesh_webhook::axum::http::StatusCode;
use botmesh_webhook::axum::routing::post;
use botmesh_webhook::axum::{Router, serve};
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use crate::served::{PATH, Served};

/// As many rows share a transaction at most as in the store.
const GROUP: usize = 1024;

type Call = (Vec<u8>, oneshot::Sender<()>);

pub(crate) fn start(file: PathBuf) -> Served {
    let (calls, waiting) = channel();
    let writer = thread::Builder::new()
        .name("bare-writer".to_owned())
        .spawn(move || write(open(&file), &waiting))
        .unwrap();
    Served::start(async move |listener, stop| {
        let routes = Router::new().route(PATH, post(take)).with_state(calls);
        serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await.unwrap();
        writer.join().unwrap();
    })
}

async fn take(State(calls): State<Sender<Call>>, request: Request<Body>) -> StatusCode {
    let body = to_bytes(request.into_body(), 8 << 20).await.unwrap();
    let (reply, written) = oneshot::channel();
    calls.send((body.into(), reply)).unwrap();
    written.await.unwrap();
    StatusCode::OK
}

fn open(file: &PathBuf) -> Connection {
    let conn = Connection::open(file).unwrap();
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    conn.execute_batch(
        "PRAGMA synchronous = FULL; CREATE TABLE posts (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    )
    .unwrap();
    conn
}

#[expect(clippy::needless_pass_by_value, reason = "the connection ends with the thread")]
fn write(conn: Connection, calls: &Receiver<Call>) {
    let mut group = Vec::new();
    while let Ok(first) = calls.recv() {
        group.push(first);
        group.extend(calls.try_iter().take(GROUP - 1));
        let execute = |sql: &str| conn.prepare_cached(sql).unwrap().execute([]).unwrap();
        execute("BEGIN IMMEDIATE");
        for (body, _) in &group {
            let mut insert = conn.prepare_cached("INSERT INTO posts (body) VALUES (?1)").unwrap();
            insert.execute(params![body]).unwrap();
        }
        execute("COMMIT");
        for (_, reply) in group.drain(..) {
            // Whoever posted may have gone.
            let _ = reply.send(());
        }
    }
}
