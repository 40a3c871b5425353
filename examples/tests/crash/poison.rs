//! A message that kills the process that handles it.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use botmesh::prelude::*;
use botmesh_sqlite_store::SqliteStore;
use botmesh_terminal::Transcript;

use crate::child::Place;

const FOLDER: &str = "BOTMESH_POISON";

/// The bot that is killed; it runs only where a test started it.
#[test]
fn child_that_is_poisoned() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let ended = runtime.block_on(serve(Path::new(&folder)));
    if let Err(error) = ended {
        panic!("{}", botmesh::describe(&*error));
    }
}

async fn serve(folder: &Path) -> Result {
    let store = SqliteStore::open(folder.join("bot.db")).await?;
    let runs = folder.join("runs");
    let bot = Bot::builder()
        .durability(Durability::new(store.durability()).with_instance_id("bot-1"))
        .store(store.clone())
        .provider(Transcript::open(folder.join("in"), folder.join("out"))?)
        .when("poison", move |c: Ctx| {
            let mut runs = File::options().create(true).append(true).open(&runs).expect("a file");
            runs.write_all(b"x").expect("a note");
            async move {
                if c.text() == "poison" {
                    std::process::abort();
                }
            }
        })
        .otherwise(|c: Ctx| async move { c.reply(c.text()).await })
        .build()?;
    bot.run().await
}

fn start(place: &Place) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test has a path"));
    command.args(["--exact", "poison::child_that_is_poisoned", "--nocapture"]);
    command.env(FOLDER, place.path("")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(place.errors());
    command
}

/// Case B01.
#[test]
fn a_message_that_aborts_the_process_is_given_up_after_its_attempts_and_the_other_chats_go_on() {
    const STARTS: usize = 10;
    const ATTEMPTS: usize = 5;
    let place = Place::new();
    let others: String = (0..STARTS * 2).map(|n| format!("chat-{n}\tmessage {n}\n")).collect();
    place.write("in", format!("eve\tpoison\n{others}eve\tafter it\n"));
    let mut aborted = Vec::new();
    for n in 1..=STARTS {
        let status = place.wait(&mut start(&place).spawn().expect("a child"));
        if status.signal().is_some() {
            aborted.push(n);
        }
        let told = place.complaints().matches("durability:dead").count();
        assert_eq!(told > 0, n > ATTEMPTS, "start {n}: {}", place.complaints());
        assert_eq!(status.success(), n > ATTEMPTS + 1, "start {n}: {status}\n{}", place.complaints());
    }
    assert_eq!(aborted, (1..=ATTEMPTS).collect::<Vec<_>>());
    assert_eq!(place.bytes("runs").len(), ATTEMPTS);
    let mut replies: Vec<_> = place.replies("out").into_iter().map(|(_, chat, text)| (chat, text)).collect();
    replies.sort();
    let mut expected: Vec<_> =
        (0..STARTS * 2).map(|n| (format!("chat-{n}"), format!("message {n}"))).collect();
    expected.push(("eve".to_owned(), "after it".to_owned()));
    expected.sort();
    assert_eq!(replies, expected);
}
