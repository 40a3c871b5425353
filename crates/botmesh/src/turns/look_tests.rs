use std::sync::Arc;
use std::time::Duration;

use botmesh_testing::LossyKv;
use futures_util::future::join_all;

use super::look::{Looks, MOST, PAGE};
use crate::TokioSpawner;
use crate::core::id::{ConversationKey, InstanceId};
use crate::core::inbound::Inbound;
use crate::core::journal::{Change, InboxRecord, Journal, KvDurability, Leases};
use crate::core::memory::MemoryKv;
use crate::core::scope::Scope;
use crate::core::spawn::Seams;
use crate::core::time::Timestamp;

const LEASE: Duration = Duration::from_secs(60);

/// A journal with so many unfinished messages of each of some chats, in turn, and how it is read.
async fn journal(chats: usize, each: usize) -> (Journal, LossyKv) {
    let kv = LossyKv::new(Arc::new(MemoryKv::new()));
    let (scope, seams) = (Scope::default(), Seams::system(Arc::new(TokioSpawner)));
    let durability = KvDurability::new(Arc::new(kv.clone()));
    let journal = durability
        .open(&scope, InstanceId::from("busy"), Leases { messages: LEASE, sends: LEASE }, seams)
        .await
        .unwrap();
    let now = Timestamp::from_millis(0);
    let messages = (0..each).flat_map(|message| (0..chats).map(move |chat| (chat, message)));
    let insert = |(chat, message): (usize, usize)| {
        let inbound = Arc::new(Inbound::text(format!("{chat}-{message}"), format!("chat{chat}"), "hi"));
        let new = if message == 0 { InboxRecord::working } else { InboxRecord::queued };
        Change::insert(&new(inbound, journal.next_order(now), journal.owner(), now))
    };
    journal.commit(messages.map(insert).collect()).await.unwrap();
    (journal, kv)
}

fn key(chat: usize) -> ConversationKey {
    Inbound::text("", format!("chat{chat}"), "").conversation()
}

#[tokio::test]
async fn a_look_finds_the_earliest_of_its_chat_and_keeps_nothing() {
    let (journal, kv) = journal(10, 150).await;
    let (looks, before) = (Looks::default(), kv.reads());
    let found = looks.of(&journal, &key(3), i64::MAX).await.unwrap();
    let ids: Vec<_> = found.messages.iter().map(|stored| stored.record.inbound.event.to_string()).collect();
    assert_eq!(ids, (0..MOST).map(|message| format!("3-{message}")).collect::<Vec<_>>());
    assert!(found.more);
    // A page of those at work, and the pages of those that wait.
    assert!(kv.reads() - before <= (1 + 1500 / PAGE + 1) as u64, "{} reads", kv.reads() - before);
    assert_eq!(looks.kept(), 0);
    assert!(looks.of(&journal, &key(99), i64::MAX).await.unwrap().messages.is_empty());
}

#[tokio::test]
async fn a_look_reads_no_further_than_what_it_is_asked_for_arrived() {
    let (journal, kv) = journal(10, 150).await;
    let (looks, before) = (Looks::default(), kv.reads());
    // The messages of a chat come every ten.
    let found = looks.of(&journal, &key(0), 25).await.unwrap();
    assert_eq!(found.messages.len(), 3);
    assert!(!found.more);
    assert_eq!(kv.reads() - before, 2, "one page of each kind");
}

#[tokio::test]
async fn one_look_serves_all_who_asked_before_it_began() {
    let (journal, kv) = journal(50, 20).await;
    let (looks, before) = (Looks::default(), kv.reads());
    let one = (1 + 1000 / PAGE + 1) as u64;
    let keys: Vec<_> = (0..50).chain(0..50).map(key).collect();
    let all = join_all(keys.iter().map(|key| looks.of(&journal, key, i64::MAX)));
    let others = looks.hold().await;
    let (found, ()) = tokio::join!(all, async { drop(others) });
    for found in found {
        assert_eq!(found.unwrap().messages.len(), 20);
    }
    assert!(kv.reads() - before <= one, "{} reads", kv.reads() - before);
    assert_eq!(looks.kept(), 0);
}
