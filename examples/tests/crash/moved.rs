//! Chats that get another id while the desk is killed: a conversation goes on in the middle.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use botmesh_testing::{FakeGraph, FakeTelegram, GraphProduct, GraphUser};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::child::Place;

const OLD: i64 = -4_012_345_678;
const NEW: i64 = -1_001_557_912_345;
const QUESTIONS: [&str; 3] =
    ["What is your name?", "Which day suits you, Monday to Friday?", "At what hour, from 9 to 17?"];

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).spawn().expect("the example starts")
}

fn kill(mut child: Child) {
    child.kill().expect("the desk can be killed");
    child.wait().expect("the desk can be waited for");
}

fn polling(place: &Place, server: &FakeTelegram) -> Child {
    let mut command = place.command();
    command.arg("--telegram-api").arg(server.url()).arg("--telegram-polling");
    command.env("TELEGRAM_TOKEN", server.token());
    start(command)
}

/// The group becomes a supergroup, which its own message says before the old one does.
fn migrates_told_in_reverse(server: &FakeTelegram) {
    let left: Value = serde_json::from_str(include_str!(
        "../../../crates/telegram/tests/payloads/updates/service_migrate_to.json"
    ))
    .expect("JSON");
    let joined = json!({
        "message_id": 1, "date": 1_795_950_126, "from": left["message"]["from"],
        "chat": { "id": NEW, "title": "Old group", "type": "supergroup" }, "migrate_from_chat_id": OLD,
    });
    server.push(json!({ "message": joined }));
    server.push(json!({ "message": left["message"] }));
}

fn in_a_group_that_moves(moves: impl FnOnce(&FakeTelegram)) {
    let (place, runtime) = (Place::new(), Runtime::new().expect("a runtime"));
    let server = runtime.block_on(FakeTelegram::start());
    let ana = server.user(5_025_045_066, "Ana");
    let said = |chat, text: &str| {
        let said = || server.texts_to(chat).iter().any(|said| said == text).then_some(());
        place.wait_for(text, said);
    };
    let desk = polling(&place, &server);
    let group = ana.in_group(&server.group(OLD, "Old group"));
    for (text, answer) in [("book", QUESTIONS[0]), ("Ana", QUESTIONS[1])] {
        group.writes(text);
        said(OLD, answer);
    }
    moves(&server);
    place.wait_for("what both chats say", || (server.unconfirmed() == 0).then_some(()));
    kill(desk);

    let desk = polling(&place, &server);
    ana.in_group(&server.group(NEW, "New group")).writes("monday");
    said(NEW, QUESTIONS[2]);
    kill(desk);
}

/// Case C43.
#[test]
fn in_the_middle_of_a_booking_a_group_becomes_a_supergroup() {
    in_a_group_that_moves(|server| drop(server.group(OLD, "Old group").migrates(NEW)));
}

/// Case C43, reversed.
#[test]
fn in_the_middle_of_a_booking_a_supergroup_says_that_it_was_a_group() {
    in_a_group_that_moves(migrates_told_in_reverse);
}

/// A desk on WhatsApp, and where it takes posts.
struct Desk {
    child: Child,
    hook: String,
}

impl Desk {
    fn start(mut command: Command, graph: &FakeGraph) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = free.local_addr().expect("an address").to_string();
        drop(free);
        command.args(["--whatsapp-webhook", &listen, "--whatsapp-number", FakeGraph::PHONE_NUMBER_ID]);
        command.args(["--meta-api", &graph.url()]).env("WHATSAPP_TOKEN", FakeGraph::ACCESS_TOKEN);
        command.env("WHATSAPP_APP_SECRET", FakeGraph::APP_SECRET);
        command.env("WHATSAPP_VERIFY_TOKEN", FakeGraph::VERIFY_TOKEN);
        Self { child: start(command), hook: format!("http://{listen}/webhooks/whatsapp") }
    }

    /// From now on, posts come here.
    fn takes(&self, graph: &FakeGraph) {
        graph.set_webhook(GraphProduct::WhatsApp, self.hook.clone());
    }
}

fn answers(place: &Place, runtime: &Runtime, user: &GraphUser, text: &str, answer: &str) {
    runtime.block_on(user.says(text));
    place.wait_for(answer, || user.texts().iter().any(|said| said == answer).then_some(()));
}

/// Case E83.
#[test]
fn in_the_middle_of_a_booking_a_user_changes_their_number() {
    let (place, runtime) = (Place::new(), Runtime::new().expect("a runtime"));
    let graph = runtime.block_on(FakeGraph::start());
    let ana = graph.whatsapp_user("Ana", "15551234567");
    let desk = Desk::start(place.command(), &graph);
    desk.takes(&graph);
    answers(&place, &runtime, &ana, "book", QUESTIONS[0]);
    answers(&place, &runtime, &ana, "Ana", QUESTIONS[1]);
    let ana = runtime.block_on(ana.changes_number("15557654321"));
    kill(desk.child);
    let desk = Desk::start(place.command(), &graph);
    desk.takes(&graph);
    answers(&place, &runtime, &ana, "monday", QUESTIONS[2]);
    kill(desk.child);
}

/// Case E83, on replicas: one is told of the new number and killed, the other one goes on.
#[cfg(feature = "redis")]
#[test]
fn a_replica_goes_on_with_a_user_of_whose_new_number_another_one_was_told() {
    use botmesh_test_servers::{Options, Redis};
    let (place, runtime) = (Place::new(), Runtime::new().expect("a runtime"));
    let redis = Redis::start(&Options::new()).expect("a server");
    let replica = |name: &str| {
        let mut command = place.bare_command();
        command.args(["--redis", redis.url(), "--lease", "3s", "--instance", name]);
        command
    };
    let graph = runtime.block_on(FakeGraph::start());
    let ana = graph.whatsapp_user("Ana", "15551234567");
    let (one, two) = (Desk::start(replica("one"), &graph), Desk::start(replica("two"), &graph));
    two.takes(&graph);
    answers(&place, &runtime, &ana, "book", QUESTIONS[0]);
    one.takes(&graph);
    answers(&place, &runtime, &ana, "Ana", QUESTIONS[1]);
    let ana = runtime.block_on(ana.changes_number("15557654321"));
    kill(one.child);
    two.takes(&graph);
    answers(&place, &runtime, &ana, "monday", QUESTIONS[2]);
    kill(two.child);
}
