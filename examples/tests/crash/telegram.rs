//! The desk on Telegram, killed at random: each reply once, or counted as one of which nobody knows.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use botmesh::TokioSpawner;
use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh::core::journal::{InboxState, KvDurability, OutboxState};
use botmesh::core::scope::Scope;
use botmesh::core::spawn::Seams;
use botmesh::core::store::Store;
use botmesh::core::time::Timestamp;
use botmesh_sqlite_store::SqliteStore;
use botmesh_testing::{FakeTelegram, TelegramUser};
use tokio::runtime::Runtime;

use crate::child::Place;
use crate::script::{Script, seed};

const UPDATES: usize = 2_000;
const CHATS: usize = 50;
const KILLS: usize = 30;

/// A desk on Telegram.
fn desk(place: &Place, server: &FakeTelegram) -> Command {
    let mut command = place.command();
    command.arg("--telegram-api").arg(server.url());
    command.env("TELEGRAM_TOKEN", server.token()).env("TELEGRAM_SECRET", "a-secret").stdin(Stdio::null());
    command
}

fn polling(place: &Place, server: &FakeTelegram) -> Command {
    let mut command = desk(place, server);
    command.arg("--telegram-polling");
    command
}

fn kill(child: &mut Child) {
    child.kill().expect("the desk can be killed");
    child.wait().expect("the desk can be waited for");
}

/// How many sends nobody knows of, as the journal in `place` says.
async fn unknown(place: &Place) -> usize {
    let store = SqliteStore::open(place.path("data").join("appointments.db")).await.expect("the database");
    let (lease, seams) = (Duration::from_secs(5), Seams::system(Arc::new(TokioSpawner)));
    let journals = KvDurability::new(store.durability());
    let scope = Scope::default();
    let opening = journals.open(&scope, "counting".into(), lease, seams);
    let journal = opening.await.expect("the journals");
    let unknown =
        journal.outbox().count(OutboxState::Unknown, Timestamp::MAX, 10_000).await.expect("a count");
    for state in [OutboxState::InFlight, OutboxState::Waiting, OutboxState::Dead] {
        let left = journal.outbox().count(state, Timestamp::MAX, 10_000).await.expect("a count");
        assert_eq!(left, 0, "{state:?}");
    }
    let given_up = journal.inbox().count(InboxState::Dead, Timestamp::MAX, 10_000).await.expect("a count");
    assert_eq!(given_up, 0, "messages were given up");
    journal.end_session().await.expect("its end");
    store.close().await.expect("its end");
    unknown
}

/// What a chat got is what it should, in order, but for some that are missing. How many.
fn missing(chat: &str, expected: &[String], said: &[String]) -> usize {
    let mut rest = said.iter().peekable();
    let missing = expected.iter().filter(|reply| rest.next_if(|said| said == reply).is_none()).count();
    let next = rest.next();
    assert!(next.is_none(), "{chat}: {next:?} came twice or out of order, in {said:#?} for {expected:#?}");
    missing
}

#[test]
fn killed_at_random_each_update_that_is_polled_is_answered_once_or_counted_as_unknown() {
    killed_at_random(seed(11), polling);
}

#[test]
fn killed_at_random_each_update_that_is_posted_is_answered_once_or_counted_as_unknown() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    killed_at_random(seed(12), move |place, server| {
        let mut command = desk(place, server);
        command.arg("--telegram-webhook").arg(&address);
        command.arg("--telegram-url").arg(format!("http://{address}/telegram"));
        command
    });
}

/// Waits until everything is taken over and, as far as can be seen, answered.
fn wait_for_all(place: &Place, server: &FakeTelegram) {
    const STILL: usize = 1_500;
    let (mut sent, mut still) = (0, 0);
    place.wait_for("no more replies", || {
        let now = server.done("sendMessage").len();
        still = if now == sent && server.unconfirmed() == 0 { still + 1 } else { 0 };
        sent = now;
        (still >= STILL).then_some(())
    });
}

fn killed_at_random(seed: u64, command: impl Fn(&Place, &FakeTelegram) -> Command) {
    let start =
        |place: &Place, server: &FakeTelegram| command(place, server).spawn().expect("the example starts");
    let entropy = SeededEntropy::new(seed);
    let place = Place::new();
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(FakeTelegram::start());
    let script = Script::random(&entropy, UPDATES, CHATS);
    let users: BTreeMap<String, TelegramUser> =
        (0..CHATS).map(|n| (format!("chat-{n}"), server.user(5_025_045_000 + n as i64, "Ana"))).collect();
    let mut lines = script.lines.iter();
    let mut kills = 0;
    let mut child = start(&place, &server);
    while kills < KILLS {
        // Some more are written, and some that were answered come again.
        for (chat, text) in lines.by_ref().take(UPDATES / KILLS) {
            users[chat].writes(text);
        }
        let before = server.done("sendMessage").len();
        let replies = entropy.next_u64() as usize % 60;
        // Every third life is long enough for whatever the ones before it left in the middle: a message is given up that
        // was begun in five lives.
        if kills % 3 == 2 {
            wait_for_all(&place, &server);
        } else {
            place.wait_for("some replies", || {
                let done = server.unconfirmed() == 0 || server.done("sendMessage").len() >= before + replies;
                done.then_some(())
            });
        }
        kill(&mut child);
        kills += 1;
        if kills % 3 == 0 {
            server.redeliver();
        }
        child = start(&place, &server);
    }
    for (chat, text) in lines {
        users[chat].writes(text);
    }
    server.redeliver();
    // What each chat writes last is answered last.
    for user in users.values() {
        user.writes("stop");
        user.writes("help");
    }
    place.wait_for("the last replies", || {
        let is_done = |user: &TelegramUser| {
            user.replies().last().is_some_and(|last| last.starts_with("I am the clinic's desk"))
        };
        (server.unconfirmed() == 0 && users.values().all(is_done)).then_some(())
    });
    let stopped = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(stopped.is_ok_and(|status| status.success()), "the signal cannot be sent");
    assert!(place.wait(&mut child).success(), "{}", place.complaints());

    let unknown = runtime.block_on(unknown(&place));
    let missing: usize = script
        .expected
        .iter()
        .map(|(chat, expected)| {
            let shown: Vec<String> =
                expected.iter().map(|text| text.replace("\n1) Yes\n2) No", "")).collect();
            let mut said = users[chat].replies();
            said.truncate(said.len() - 2);
            missing(chat, &shown, &said)
        })
        .sum();
    println!(
        "seed {seed}: {kills} kills, {UPDATES} updates, {missing} replies missing, {unknown} unknown, {:.1?}",
        place.elapsed()
    );
    assert!(missing <= unknown, "seed {seed}: {missing} replies are missing, and of {unknown} nobody knows");
}
