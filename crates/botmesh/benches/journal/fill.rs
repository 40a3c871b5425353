//! Fills journals as processes left them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use botmesh::TokioSpawner;
use botmesh::core::id::InstanceId;
use botmesh::core::journal::{Change, InboxRecord, Journal, KvDurability};
use botmesh::core::scope::Scope;
use botmesh::core::spawn::Seams;
use botmesh::core::time::{Clock, SystemClock};

use crate::bot::Opened;
use crate::message::inbound;

/// The instance that the bots have too.
pub(crate) const INSTANCE: &str = "bot-1";

/// Records that are written with one commit.
const BATCH: u64 = 1_000;

/// Messages of one chat.
pub(crate) const EACH: u64 = 10;

/// How many messages were being handled when the process died.
const WORKING: u64 = 512;

async fn journal(opened: &Opened) -> Journal {
    let seams = Seams::system(Arc::new(TokioSpawner));
    let kv = KvDurability::new(Arc::clone(&opened.kv));
    let instance = InstanceId::from(INSTANCE);
    kv.open(&Scope::default(), instance, Duration::from_secs(60), seams).await.unwrap()
}

/// Messages that a process had taken over when it died.
pub(crate) async fn unfinished(opened: &Opened, count: u64) {
    let journal = journal(opened).await;
    write(&journal, 0..count, |n, record| if n < WORKING { record } else { queued(record) }).await;
}

/// Messages that are done.
pub(crate) async fn finished(opened: &Opened, numbers: Range<u64>) {
    let journal = journal(opened).await;
    let now = SystemClock::new().now();
    write(&journal, numbers, |_, record| record.finish(now).unwrap()).await;
    journal.end_session().await.unwrap();
}

fn queued(record: InboxRecord) -> InboxRecord {
    let InboxRecord { inbound, order, owner, received, .. } = record;
    InboxRecord::queued(inbound, order, owner.unwrap(), received)
}

async fn write(journal: &Journal, numbers: Range<u64>, finish: impl Fn(u64, InboxRecord) -> InboxRecord) {
    let now = SystemClock::new().now();
    let mut start = numbers.start;
    while start < numbers.end {
        let end = (start + BATCH).min(numbers.end);
        let record = |n: u64| {
            let message = Arc::new(inbound((n / EACH) as u32, n));
            finish(n, InboxRecord::working(message, journal.next_order(now), journal.owner(), now))
        };
        let changes = (start..end).map(|n| Change::insert(&record(n))).collect();
        journal.commit(changes).await.unwrap();
        start = end;
    }
}
