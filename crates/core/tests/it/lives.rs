//! Random lives of records: whatever happens to one, a sweep finds it until it is finished.

use std::sync::Arc;

use botmesh_core::content::Content;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_core::journal::{
    Change, ErrorNote, InboxRecord, InboxState, Journal, OutboxRecord, OutboxState, Owner, Record, Refused,
    Send,
};
use botmesh_core::time::Timestamp;
use proptest::prelude::*;

use crate::journal_writes::Desk;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const MAX_ATTEMPTS: u32 = 3;

fn owner(epoch: u64) -> Owner {
    Owner { instance: "gone".into(), epoch }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work)
}

type Step<R> = fn(&R, &Owner) -> Result<R, Refused>;

const OF_MESSAGES: [Step<InboxRecord>; 9] = [
    |record, owner| record.start(owner, NOW),
    |record, owner| record.adopt(owner, MAX_ATTEMPTS, NOW),
    |record, _| record.finish(NOW),
    |record, _| record.fail("no", NOW, MAX_ATTEMPTS, NOW),
    |record, _| record.release(NOW),
    |record, owner| record.begin_again(Some("no"), owner, MAX_ATTEMPTS, NOW),
    |record, owner| record.begin_again(None, owner, MAX_ATTEMPTS, NOW),
    |record, _| record.replay(None, NOW),
    |record, _| record.replay(Some("ana"), NOW),
];

fn note() -> ErrorNote {
    ErrorNote::from(&ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy"))
}

const OF_SENDS: [Step<OutboxRecord>; 11] = [
    |record, owner| record.start(owner, NOW),
    |record, _| record.release(NOW),
    |record, _| record.sent("out-1".into(), NOW),
    |record, _| record.confirm("out-1".into(), NOW),
    |record, _| record.fail(note(), Some(NOW), NOW),
    |record, _| record.fail(note(), None, NOW),
    |record, _| record.give_up_unknown(NOW),
    |record, _| record.await_echo(NOW, NOW),
    |record, _| record.wait_behind("earlier".into(), NOW, NOW),
    |record, _| record.cut_off(note(), NOW),
    |record, _| record.retry(None, NOW),
];

/// How many sweeps find the record: the one for what is due, and the one for what dead processes left.
async fn sweeps(journal: &Journal, id: &str) -> usize {
    let due = journal.due(Timestamp::MAX, None, 10).await.expect("what is due");
    let sessions = journal.sessions().await.expect("sessions");
    let mut found = Vec::new();
    found.extend(due.inbox.records.iter().map(|stored| stored.record.id().to_owned()));
    found.extend(due.outbox.records.iter().map(|stored| stored.record.id().to_owned()));
    let orphan = |owner: &Option<Owner>| owner.as_ref().is_none_or(|owner| sessions.is_dead(owner));
    for state in [InboxState::Working, InboxState::Queued] {
        let page = journal.inbox().list(state, None, 10).await.expect("a page");
        let orphans = page.records.iter().filter(|stored| orphan(&stored.record.owner));
        found.extend(orphans.map(|stored| stored.record.id().to_owned()));
    }
    let page = journal.outbox().list(OutboxState::InFlight, None, 10).await.expect("a page");
    let orphans = page.records.iter().filter(|stored| orphan(&stored.record.owner));
    found.extend(orphans.map(|stored| stored.record.id().to_owned()));
    found.iter().filter(|found| *found == id).count()
}

/// Lives a life, and after each step asks which sweeps would find the record if its process were dead.
async fn live<R: Record + Clone>(
    born: R,
    steps: &[Step<R>],
    choices: &[(usize, u64)],
    is_open: impl Fn(&R) -> bool,
) {
    let desk = Desk::new();
    let journal = desk.open("desk").await;
    let mut record = born;
    let inserted = journal.commit_one(Change::insert(&record)).await.expect("an answer");
    let mut version = inserted.applied().expect("a new record");
    for (choice, epoch) in choices {
        let found = sweeps(&journal, record.id()).await;
        let state = record.index();
        assert_eq!(found, usize::from(is_open(&record)), "{} at {state:?}", record.id());
        let Ok(next) = steps[choice % steps.len()](&record, &owner(*epoch)) else { continue };
        record = next;
        let written = journal.commit_one(Change::update(version, &record)).await.expect("an answer");
        version = written.applied().expect("the only writer");
    }
}

fn message() -> Arc<Inbound> {
    Arc::new(Inbound::text("7", "ana", "hi"))
}

fn send() -> Send {
    let (chat, content) = ("ana".into(), Content::text("hello"));
    Send { key: "k".into(), chat, content, fingerprint: None, source: None }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Case A09.
    #[test]
    fn exactly_one_sweep_finds_a_message_until_it_is_finished(
        queued in any::<bool>(),
        choices in prop::collection::vec((any::<usize>(), 1u64..3), 1..25),
    ) {
        let born = if queued { InboxRecord::queued } else { InboxRecord::working };
        let is_open =
            |record: &InboxRecord| !matches!(record.state, InboxState::Done | InboxState::Dead);
        run(live(born(message(), 1, owner(1), NOW), &OF_MESSAGES, &choices, is_open));
    }

    /// Case A09.
    #[test]
    fn exactly_one_sweep_finds_a_send_until_it_is_finished(
        waits in any::<bool>(),
        choices in prop::collection::vec((any::<usize>(), 1u64..3), 1..25),
    ) {
        let born = match waits {
            true => OutboxRecord::waiting(send(), 1, NOW),
            false => OutboxRecord::in_flight(send(), 1, owner(1), NOW),
        };
        let is_open = |record: &OutboxRecord| record.is_unfinished() || record.awaits_echo();
        run(live(born, &OF_SENDS, &choices, is_open));
    }

    /// Case J04.
    #[test]
    fn a_number_comes_back_from_the_journal_to_the_last_bit(latitude: f64, longitude: f64, id: i64) {
        prop_assume!(latitude.is_finite() && longitude.is_finite());
        let body = InboundBody::Location { latitude, longitude, name: None };
        let event = id.to_string();
        let inbound = Inbound::private(event.as_str(), "-1001234567890123", body);
        let record = InboxRecord::working(Arc::new(inbound), id, owner(u64::MAX), NOW);
        let json = serde_json::to_vec(&record).expect("JSON");
        let read: InboxRecord = serde_json::from_slice(&json).expect("a record");
        let InboundBody::Location { latitude: lat, longitude: long, .. } = &read.inbound.body else {
            panic!("another body");
        };
        let bits = [lat.to_bits(), long.to_bits()];
        prop_assert_eq!(bits, [latitude.to_bits(), longitude.to_bits()]);
        prop_assert_eq!((read.order, read.owner), (id, Some(owner(u64::MAX))));
        prop_assert_eq!(read.inbound.event.as_str(), event);
        prop_assert_eq!(read.inbound.chat.as_str(), "-1001234567890123");
    }
}
