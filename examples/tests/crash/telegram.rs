//! The desk on Telegram, killed at random: each reply once, or counted as one of which nobody knows.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh_testing::{FakeTelegram, TelegramUser};
use tokio::runtime::Runtime;

use crate::child::{Place, free_port, kill, terminate};
use crate::script::{Script, seed};
use crate::tally::{missing, unknown, wait_for_all};

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

#[test]
fn killed_at_random_each_update_that_is_polled_is_answered_once_or_counted_as_unknown() {
    killed_at_random(seed(11), polling);
}

#[test]
fn killed_at_random_each_update_that_is_posted_is_answered_once_or_counted_as_unknown() {
    let address = free_port();
    killed_at_random(seed(12), move |place, server| {
        let mut command = desk(place, server);
        command.arg("--telegram-webhook").arg(&address);
        command.arg("--telegram-url").arg(format!("http://{address}/telegram"));
        command
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
            wait_for_all(&place, || (server.done("sendMessage").len(), server.unconfirmed()));
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
    terminate(&place, &mut child);

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
