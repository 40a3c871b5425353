//! The desk on WhatsApp, killed at random: Meta says which messages it has, so that each reply comes exactly once.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh_testing::{FakeGraph, GraphProduct, GraphUser};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::child::Place;
use crate::script::{Script, seed};

const MESSAGES: usize = 2_000;
const CHATS: usize = 50;
const KILLS: usize = 24;

fn desk(place: &Place, graph: &FakeGraph, listen: &str) -> Child {
    let mut command: Command = place.command();
    command.args(["--whatsapp-webhook", listen, "--whatsapp-number", FakeGraph::PHONE_NUMBER_ID]);
    command.args(["--whatsapp-api", &graph.url(), "--whatsapp-echo", "8s"]);
    command.env("WHATSAPP_TOKEN", FakeGraph::ACCESS_TOKEN).env("WHATSAPP_APP_SECRET", FakeGraph::APP_SECRET);
    command.env("WHATSAPP_VERIFY_TOKEN", FakeGraph::VERIFY_TOKEN).stdin(Stdio::null());
    command.spawn().expect("the example starts")
}

fn kill(child: &mut Child) {
    child.kill().expect("the desk can be killed");
    child.wait().expect("the desk can be waited for");
}

/// A port of this host that nobody has.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

/// What each chat says, in order.
fn by_chat(script: &Script) -> BTreeMap<&str, Vec<String>> {
    let mut chats = BTreeMap::<&str, Vec<String>>::new();
    for (chat, text) in &script.lines {
        chats.entry(chat).or_default().push(text.clone());
    }
    chats
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

#[test]
fn killed_at_random_each_message_of_whatsapp_is_answered_exactly_once() {
    let seed = seed(12);
    let entropy = SeededEntropy::new(seed);
    let (place, listen) = (Place::new(), free_port());
    let runtime = Runtime::new().expect("a runtime");
    let graph = runtime.block_on(FakeGraph::start());
    graph.set_webhook(GraphProduct::WhatsApp, format!("http://{listen}/webhooks/whatsapp"));
    let script = Script::random(&entropy, MESSAGES, CHATS);
    let mut users = BTreeMap::<&str, GraphUser>::new();
    let (mut writing, may_write) = (Vec::new(), Arc::new(Semaphore::new(0)));
    for (number, (chat, texts)) in by_chat(&script).into_iter().enumerate() {
        let user = graph.whatsapp_user(chat, &format!("15551{number:06}"));
        users.insert(chat, user.clone());
        writing.push(write(&runtime, Arc::clone(&may_write), user, texts));
    }
    let mut child = desk(&place, &graph, &listen);
    let mut released = 0;
    for kills in 1..=KILLS {
        released += MESSAGES / KILLS;
        may_write.add_permits(MESSAGES / KILLS);
        // Every fourth life is long enough for whatever the ones before it left in the middle, or waiting for a status.
        let some = graph.sent_count() + entropy.next_u64() as usize % 60;
        let enough = if kills % 4 == 0 { released } else { some.min(released) };
        place.wait_for("some replies", || (graph.sent_count() >= enough).then_some(()));
        kill(&mut child);
        child = desk(&place, &graph, &listen);
        if kills % 8 == 0 {
            writing.push(redeliver(&runtime, graph.clone()));
        }
    }
    may_write.add_permits(MESSAGES - released);
    place.wait_for("the last replies", || (graph.sent_count() >= MESSAGES).then_some(()));
    for task in writing {
        runtime.block_on(task).expect("everything is taken over");
    }
    runtime.block_on(graph.redeliver());
    let stopped = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(stopped.is_ok_and(|status| status.success()), "the signal cannot be sent");
    assert!(place.wait(&mut child).success(), "{}", place.complaints());

    println!("seed {seed}: {KILLS} kills, {MESSAGES} messages, {:.1?}", place.elapsed());
    let sent = graph.sent();
    let mut keys: Vec<_> = sent.iter().map(|message| message.token.clone().expect("a key")).collect();
    keys.sort();
    let twice: Vec<_> = keys.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert!(twice.is_empty(), "seed {seed}: sent twice: {twice:?}");
    for (chat, expected) in &script.expected {
        let shown = expected.iter().map(|text| text.replace("\n1) Yes\n2) No", "")).collect();
        assert_eq!(sorted(users[&**chat].texts()), sorted(shown), "seed {seed}: {chat}");
    }
}

type Task = tokio::task::JoinHandle<()>;

/// Somebody writes one message after the other, each when they may and the one before is taken over.
fn write(runtime: &Runtime, may_write: Arc<Semaphore>, user: GraphUser, texts: Vec<String>) -> Task {
    spawn(runtime, async move {
        for text in texts {
            may_write.acquire().await.expect("it is open").forget();
            user.says(&text).await;
        }
    })
}

/// Everything so far comes again.
fn redeliver(runtime: &Runtime, graph: FakeGraph) -> Task {
    spawn(runtime, async move { graph.redeliver().await })
}

#[expect(clippy::disallowed_methods, reason = "users beside the test, in real time")]
fn spawn(runtime: &Runtime, task: impl Future<Output = ()> + Send + 'static) -> Task {
    runtime.spawn(task)
}
