//! The desk on Meta's products, killed at random. WhatsApp and Messenger say which messages they have, so that each reply comes
//! exactly once; Instagram does not, so that a reply may be missing, and is counted as unknown.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh_testing::{FakeGraph, GraphFault, GraphProduct, GraphUser};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::child::{Place, free_port, kill, terminate};
use crate::script::{Script, seed};
use crate::tally::{missing, unknown, wait_for_all};

const MESSAGES: usize = 2_000;
const CHATS: usize = 50;
const KILLS: usize = 24;

/// One of Meta's products, and how the desk is told of it.
struct Channel {
    product: GraphProduct,
    name: &'static str,
    account: [&'static str; 2],
    echo_wait: &'static str,
    /// Whether each reply comes, in the end.
    tells: bool,
    /// What becomes of a message in each life.
    faults: &'static [GraphFault],
}

impl Channel {
    fn desk(&self, place: &Place, graph: &FakeGraph, listen: &str) -> Child {
        let mut command: Command = place.command();
        command.arg(format!("--{}-webhook", self.name)).arg(listen).args(self.account);
        command.args(["--meta-api", &graph.url(), "--meta-echo", self.echo_wait]);
        let secrets = [
            ("TOKEN", FakeGraph::ACCESS_TOKEN),
            ("APP_SECRET", FakeGraph::APP_SECRET),
            ("VERIFY_TOKEN", FakeGraph::VERIFY_TOKEN),
        ];
        command.envs(secrets.map(|(name, secret)| (format!("{}_{name}", self.name.to_uppercase()), secret)));
        command.stdin(Stdio::null()).spawn().expect("the example starts")
    }

    fn user(&self, graph: &FakeGraph, name: &str, number: usize) -> GraphUser {
        match self.product {
            GraphProduct::WhatsApp => graph.whatsapp_user(name, &format!("15551{number:06}")),
            product => graph.user(product, name, &format!("2400000{number:06}")),
        }
    }
}

/// What each chat says, in order.
fn by_chat(script: &Script) -> BTreeMap<&str, Vec<String>> {
    let mut chats = BTreeMap::<&str, Vec<String>>::new();
    for (chat, text) in &script.lines {
        chats.entry(chat).or_default().push(text.clone());
    }
    chats
}

/// What a chat is to be answered, as it is shown where buttons are not part of the text.
fn shown(expected: &[String]) -> Vec<String> {
    expected.iter().map(|text| text.replace("\n1) Yes\n2) No", "")).collect()
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

/// What is left of a run.
struct Ran {
    seed: u64,
    script: Script,
    graph: FakeGraph,
    users: BTreeMap<String, GraphUser>,
    place: Place,
    runtime: Runtime,
}

#[test]
fn killed_at_random_each_message_of_whatsapp_is_answered_exactly_once() {
    let account = ["--whatsapp-number", FakeGraph::PHONE_NUMBER_ID];
    exactly_once(&killed_at_random(
        seed(12),
        &Channel {
            product: GraphProduct::WhatsApp,
            name: "whatsapp",
            account,
            echo_wait: "8s",
            tells: true,
            faults: &[GraphFault::LoseAnswer],
        },
    ));
}

#[test]
fn killed_at_random_each_message_of_messenger_is_answered_exactly_once() {
    let account = ["--messenger-page", FakeGraph::PAGE_ID];
    exactly_once(&killed_at_random(
        seed(13),
        &Channel {
            product: GraphProduct::Messenger,
            name: "messenger",
            account,
            echo_wait: "8s",
            tells: true,
            faults: &[GraphFault::LoseAnswer],
        },
    ));
}

#[test]
fn killed_at_random_each_message_of_instagram_is_answered_once_or_counted_as_unknown() {
    let account = ["--instagram-account", FakeGraph::ACCOUNT_ID];
    let ran = killed_at_random(
        seed(14),
        &Channel {
            product: GraphProduct::Instagram,
            name: "instagram",
            account,
            echo_wait: "300ms",
            tells: false,
            faults: &[GraphFault::LoseAnswer, GraphFault::LoseMessage],
        },
    );
    let unknown = ran.runtime.block_on(unknown(&ran.place));
    let of_chat = |(chat, expected): (&String, &Vec<String>)| {
        let mut said = ran.users[chat].texts();
        said.truncate(said.len() - LAST.len());
        missing(chat, &shown(expected), &said)
    };
    let missing: usize = ran.script.expected.iter().map(of_chat).sum();
    println!("seed {}: {missing} replies missing, {unknown} unknown", ran.seed);
    // Every life loses a message.
    assert!((1..=unknown).contains(&missing), "{missing} replies are missing, and of {unknown} nobody knows");
}

fn exactly_once(ran: &Ran) {
    let seed = ran.seed;
    let sent = ran.graph.sent();
    let mut keys: Vec<_> = sent.iter().map(|message| message.token.clone().expect("a key")).collect();
    keys.sort();
    let twice: Vec<_> = keys.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert!(twice.is_empty(), "seed {seed}: sent twice: {twice:?}");
    assert_eq!(ran.runtime.block_on(unknown(&ran.place)), 0, "seed {seed}");
    for (chat, expected) in &ran.script.expected {
        let mut said = ran.users[chat].texts();
        said.truncate(said.len() - LAST.len());
        assert_eq!(sorted(said), sorted(shown(expected)), "seed {seed}: {chat}");
    }
}

/// What each chat writes in the end: it is answered last.
const LAST: [&str; 2] = ["stop", "help"];

fn killed_at_random(seed: u64, channel: &Channel) -> Ran {
    let entropy = SeededEntropy::new(seed);
    let (place, listen) = (Place::new(), free_port());
    let runtime = Runtime::new().expect("a runtime");
    let graph = runtime.block_on(FakeGraph::start());
    graph.set_webhook(channel.product, format!("http://{listen}/webhooks/{}", channel.name));
    let script = Script::random(&entropy, MESSAGES, CHATS);
    let mut users = BTreeMap::<String, GraphUser>::new();
    let (mut writing, may_write) = (Vec::new(), Arc::new(Semaphore::new(0)));
    let taken = Arc::new(AtomicUsize::new(0));
    for (number, (chat, texts)) in by_chat(&script).into_iter().enumerate() {
        let user = channel.user(&graph, chat, number);
        users.insert(chat.to_owned(), user.clone());
        writing.push(write(&runtime, (Arc::clone(&may_write), Arc::clone(&taken)), user, texts));
    }
    let mut child = channel.desk(&place, &graph, &listen);
    let mut released = 0;
    for kills in 1..=KILLS {
        released += MESSAGES / KILLS;
        channel.faults.iter().for_each(|fault| graph.fault_next(fault.clone()));
        may_write.add_permits(MESSAGES / KILLS);
        let some = (graph.sent_count() + entropy.next_u64() as usize % 60).min(released);
        // Every fourth life is long enough for whatever the ones before it left in the middle, or waiting for an echo.
        let enough = if kills % 4 == 0 { released } else { some };
        let left = || released - taken.load(Ordering::Relaxed);
        if !channel.tells && kills % 4 == 0 {
            wait_for_all(&place, || (graph.sent_count(), left()));
        } else {
            let is_enough = || graph.sent_count() >= enough || (!channel.tells && left() == 0);
            place.wait_for("some replies", || is_enough().then_some(()));
        }
        kill(&mut child);
        child = channel.desk(&place, &graph, &listen);
        if kills % 8 == 0 {
            writing.push(redeliver(&runtime, graph.clone()));
        }
    }
    may_write.add_permits(MESSAGES - released);
    for task in writing {
        runtime.block_on(task).expect("everything is taken over");
    }
    runtime.block_on(graph.redeliver());
    for user in users.values() {
        LAST.iter().for_each(|text| drop(runtime.block_on(user.says(text))));
    }
    let is_done =
        |user: &GraphUser| user.texts().last().is_some_and(|last| last.starts_with("I am the clinic's desk"));
    place.wait_for("the last replies", || users.values().all(is_done).then_some(()));
    terminate(&place, &mut child);
    println!("seed {seed}: {KILLS} kills, {MESSAGES} messages, {:.1?}", place.elapsed());
    Ran { seed, script, graph, users, place, runtime }
}

type Task = tokio::task::JoinHandle<()>;

/// Somebody writes one message after the other, each when they may and the one before is taken over.
fn write(
    runtime: &Runtime,
    (may_write, taken): (Arc<Semaphore>, Arc<AtomicUsize>),
    user: GraphUser,
    texts: Vec<String>,
) -> Task {
    spawn(runtime, async move {
        for text in texts {
            may_write.acquire().await.expect("it is open").forget();
            user.says(&text).await;
            taken.fetch_add(1, Ordering::Relaxed);
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
