use std::sync::mpsc;

use botmesh_core::error::{Effect, StoreErrorKind};

use super::super::Client;
use super::*;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

async fn client(folder: &tempfile::TempDir) -> Client {
    Client::open(&folder.path().join("bot.db"), SqliteConfig::default()).await.unwrap()
}

fn insert(name: &'static str) -> impl FnMut(&mut Tx<'_>) -> Result<i64, Fault> + Send + 'static {
    move |tx| {
        let scope = tx.scope(&Arc::from(name))?;
        let rows = tx.statement("INSERT INTO chats VALUES (?1, 'ana', '{}')")?.execute([scope])?;
        tx.changed(rows);
        tx.next_number()
    }
}

/// Holds the writer until the sender is dropped, so that what is called meanwhile becomes one group.
fn hold() -> (mpsc::Sender<()>, impl FnMut(&mut Tx<'_>) -> Result<(), Fault> + Send + 'static) {
    let (release, held) = mpsc::channel::<()>();
    let run = move |_: &mut Tx<'_>| {
        held.recv().unwrap_err();
        Ok(())
    };
    (release, run)
}

#[test]
fn one_write_that_cannot_be_done_does_not_fail_its_group() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let client = client(&folder).await;
        let (release, held) = hold();
        let broken = |tx: &mut Tx<'_>| {
            tx.scope(&Arc::from("never"))?;
            tx.statement("INSERT INTO chats VALUES (1, NULL, NULL)")?.execute([])?;
            Ok(())
        };
        let (_, first, failed, second, ()) = tokio::join!(
            client.write("hold", 1, held),
            client.write("first", 1, insert("a")),
            client.write("broken", 1, broken),
            client.write("second", 1, insert("b")),
            async { drop(release) },
        );
        assert!(first.unwrap() < second.unwrap());
        let failed = failed.unwrap_err();
        assert_eq!((failed.kind(), failed.effect()), (StoreErrorKind::Corrupt, Effect::None));
        assert_eq!(failed.operation(), "broken");
        let scopes = client
            .read(super::super::Lane::Rows, "count", |reading| {
                let sql = "SELECT group_concat(name) FROM scopes JOIN chats ON scope = id";
                Ok(reading.statement(sql)?.query_row([], |row| row.get::<_, String>(0))?)
            })
            .await;
        assert_eq!(scopes.unwrap(), "a,b");
        client.write("never", 1, insert("never")).await.unwrap();
    });
}

#[test]
fn a_group_that_changes_nothing_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let client = client(&folder).await;
        client.write("insert", 1, insert("a")).await.unwrap();
        let length = || std::fs::metadata(folder.path().join("bot.db-wal")).unwrap().len();
        let before = length();
        client.write("nothing", 1, |tx| tx.next_number()).await.unwrap();
        assert_eq!(length(), before);
    });
}

#[test]
fn a_write_that_panics_leaves_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let client = client(&folder).await;
        let (release, held) = hold();
        let panics = |_: &mut Tx<'_>| -> Result<(), Fault> { panic!("on purpose") };
        let (_, lost, behind, ()) = tokio::join!(
            client.write("hold", 1, held),
            client.write("panics", 1, panics),
            client.write("behind", 1, insert("a")),
            async { drop(release) },
        );
        for error in [lost.unwrap_err(), behind.unwrap_err()] {
            assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Unavailable, Effect::Unknown));
        }
        let late = client.write("late", 1, insert("b")).await.unwrap_err().kind();
        assert!(matches!(late, StoreErrorKind::Misuse | StoreErrorKind::Unavailable), "{late:?}");
        assert_eq!(client.close().await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    });
}

#[test]
fn a_dropped_call_is_done_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let client = client(&folder).await;
        let (release, held) = hold();
        let mut holding = std::pin::pin!(client.write("hold", 1, held));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(holding.as_mut().poll(&mut context).is_pending());
        {
            let mut dropped = std::pin::pin!(client.write("dropped", 1, insert("a")));
            assert!(dropped.as_mut().poll(&mut context).is_pending());
        }
        drop(release);
        holding.await.unwrap();
        let known = client.write("look", 1, |tx| tx.known_scope(&Arc::from("a"))).await.unwrap();
        assert!(known.is_some());
    });
}

#[test]
fn a_write_waits_as_long_as_it_takes_for_the_writer_that_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        // Nobody else would be waited for.
        let config = SqliteConfig::default().with_busy_timeout(std::time::Duration::from_millis(1));
        let client = Client::open(&folder.path().join("bot.db"), config).await.unwrap();
        let first = client.beside().await.unwrap();
        let (release, mut held) = hold();
        let (start, started) = tokio::sync::oneshot::channel();
        let mut start = Some(start);
        let goes_first = move |tx: &mut Tx<'_>| {
            if let Some(start) = start.take() {
                start.send(()).unwrap();
            }
            held(tx)
        };
        let waits = async {
            started.await.unwrap();
            client.write("wait", 1, insert("a")).await
        };
        let reads = async {
            for _ in 0..200 {
                client.read(super::super::Lane::Rows, "look", |_| Ok(())).await.unwrap();
            }
            drop(release);
        };
        let (held, waited, ()) = tokio::join!(first.write("hold", 1, goes_first), waits, reads);
        held.unwrap();
        waited.unwrap();
        first.close().await.unwrap();
        client.write("after", 1, insert("b")).await.unwrap();
    });
}
