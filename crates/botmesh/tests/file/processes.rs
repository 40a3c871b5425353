//! This binary once more, as a process that can be killed, limited and traced.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use botmesh::core::error::StoreErrorKind;
use botmesh::core::kv::{DurableKv, Expect, Op};
use botmesh::{FileDurability, FileOptions};

use crate::tools::{applied, as_child, block_on, create, put};

#[test]
#[ignore = "the process that other tests start"]
fn child() {
    let Some((role, path)) = as_child() else { return };
    match role.as_str() {
        "commit" => block_on(commit_for_ever(&path)),
        "hold" => hold(&path),
        "fail" => block_on(go_on_after_a_failure(&path)),
        _ => panic!("{role}"),
    }
}

/// One write, so that a line is never torn.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// What the entry `key` holds.
pub(crate) fn value(key: &str) -> Vec<u8> {
    key.bytes().cycle().take(300 + key.bytes().map(usize::from).sum::<usize>() % 500).collect()
}

/// Some tasks commit two new entries at a time, count in an entry of their own, and remove it now and then. Each says
/// what it did after its commit returned.
async fn commit_for_ever(path: &Path) {
    let life = std::process::id();
    let options = FileOptions::default().with_compact_every(40);
    let file = FileDurability::open_with(path, options).await.unwrap();
    let tasks = (0..6).map(|task| work(file.scoped("bot"), format!("{life}/{task}")));
    futures_util::future::join_all(tasks).await;
}

async fn work(kv: Arc<dyn DurableKv>, name: String) {
    let mut counter = None;
    for n in 0.. {
        let keys = [format!("{name}/{n}/a"), format!("{name}/{n}/b")];
        let mut ops: Vec<_> = keys.iter().map(|key| create(key.clone(), value(key))).collect();
        ops.push(match counter {
            Some(expect) if n % 5 == 0 => Op::Delete { key: name.clone().into(), expect },
            Some(expect) => put(name.clone(), Expect::Version(expect), n.to_string()),
            None => create(name.clone(), n.to_string()),
        });
        let removes = matches!(ops[2], Op::Delete { .. });
        let versions: Vec<_> = kv.commit(ops).await.unwrap().into_iter().map(applied).collect();
        counter = (!removes).then_some(versions[2]);
        let counted = counter.map_or(0, |version| version.0);
        say(&format!("ack {name} {n} {} {} {counted}", versions[0].0, versions[1].0));
        // Lets the others in between on a machine with one core too.
        tokio::task::yield_now().await;
    }
}

/// Says whether the journals could be opened, and keeps them until its input ends.
fn hold(path: &Path) {
    match block_on(FileDurability::open(path)) {
        Ok(_file) => {
            say("open");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        Err(error) => say(&error.to_string()),
    }
}

/// Commits until a commit fails, then says how, and how everything is refused until the files are opened again.
async fn go_on_after_a_failure(path: &Path) {
    let file = FileDurability::open(path).await.unwrap();
    let mut done = 0;
    let error = loop {
        match file.commit(vec![create(format!("k{done}"), "value")]).await {
            Ok(_) => done += 1,
            Err(error) => break error,
        }
    };
    say(&format!("failed after {done}: {:?} {:?} {error}", error.kind(), error.effect()));
    if error.kind() == StoreErrorKind::Full {
        return;
    }
    let late = file.commit(vec![create("late", "value")]).await.unwrap_err();
    say(&format!("commit: {:?} {:?} retry {} {late}", late.kind(), late.effect(), late.retry()));
    let read = file.get(&["k0".into()]).await.unwrap_err();
    say(&format!("get: {:?} {read}", read.kind()));
    say(&format!("close: {:?}", file.close().await.map_err(|error| error.kind())));
    let again = FileDurability::open(path).await.unwrap();
    let keys: Vec<_> = (0..=done).map(|n| format!("k{n}").into()).collect();
    let found = again.get(&keys).await.unwrap().into_iter().flatten().count();
    say(&format!("reopened: {found} of {} or {}", done, done + 1));
    again.commit(vec![create("works", "value")]).await.unwrap();
    again.close().await.unwrap();
}
