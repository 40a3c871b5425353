use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh_core::content::Content;
use botmesh_core::error::{Cas, Effect, StoreError, StoreErrorKind};
use botmesh_core::id::{ChatId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::journal::{Change, InboxRecord, KvDurability, OutboxRecord, Send};
use botmesh_core::kv::{Caps, Cursor, Durable, DurableKv, Entry, Expect, Index, Op, Outcome, Range, Version};
use botmesh_core::memory::MemoryKv;
use botmesh_core::scope::Scope;
use botmesh_core::spawn::Seams;
use botmesh_core::time::Timestamp;
use botmesh_core::{Bytes, async_trait};
use botmesh_testing::{Fault, LossyKv, VirtualClock, WritePoint, crashable, test_seams};
use futures_util::FutureExt;

/// Knows only whether a key was written.
#[derive(Default)]
struct Written(Mutex<BTreeMap<Bytes, Version>>);

#[async_trait]
impl DurableKv for Written {
    fn scoped(&self, _: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self::default())
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        let mut written = self.0.lock().unwrap();
        let apply = |op: Op| {
            let version = Version(written.len() as u64 + 1);
            written.insert(op.key().clone(), version);
            Outcome::Applied(version)
        };
        Ok(ops.into_iter().map(apply).collect())
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        let written = self.0.lock().unwrap();
        let entry = |key: &Bytes| {
            let version = *written.get(key)?;
            Some(Entry { key: key.clone(), version, value: Bytes::new(), index: Index::default() })
        };
        Ok(keys.iter().map(entry).collect())
    }

    async fn scan(&self, _: Range, _: Option<&Cursor>, _: usize) -> Result<Vec<Entry>, StoreError> {
        Ok(Vec::new())
    }

    fn caps(&self) -> Caps {
        Caps { durable: Durable::Process, shared: false, max_value: 1, groups_commits: false }
    }
}

fn put(key: &'static str) -> Vec<Op> {
    let key = Bytes::from_static(key.as_bytes());
    vec![Op::Put { key, expect: Expect::Absent, value: Bytes::new(), index: Index::default() }]
}

async fn written(kv: &LossyKv, key: &'static str) -> bool {
    kv.inner().get(&[Bytes::from_static(key.as_bytes())]).await.unwrap()[0].is_some()
}

fn lossy() -> LossyKv {
    LossyKv::new(Arc::new(Written::default()))
}

#[tokio::test]
async fn each_fault_applies_and_answers_as_it_says() {
    let cases = [
        (Fault::FailBefore, false, Some(Effect::None), false),
        (Fault::LoseAnswer, true, Some(Effect::Unknown), false),
        (Fault::Hang, false, None, false),
        (Fault::HangAfter, true, None, false),
        (Fault::CrashBefore, false, Some(Effect::None), true),
        (Fault::CrashAfter, true, Some(Effect::Unknown), true),
        (Fault::CrashAmid, true, Some(Effect::Unknown), true),
    ];
    assert_eq!(cases.map(|(fault, ..)| fault), Fault::ALL);
    for (fault, applied, effect, crashed) in cases {
        let kv = lossy();
        kv.fail_commit(2, fault);
        assert!(kv.commit(put("one")).await.is_ok(), "{fault:?}: the first commit is not the second");
        let answer = kv.commit(put("two")).now_or_never();
        let error = answer.map(|answer| answer.unwrap_err());
        assert_eq!(error.as_ref().map(StoreError::effect), effect, "{fault:?}");
        assert!(error.is_none_or(|error| error.kind() == StoreErrorKind::Unavailable), "{fault:?}");
        assert_eq!(written(&kv, "two").await, applied, "{fault:?}");
        assert_eq!((kv.crashed(), fault.is_crash()), (crashed, crashed), "{fault:?}");
        assert_eq!(kv.commit(put("three")).await.is_err(), crashed, "{fault:?}");
        assert_eq!(kv.get(&[]).await.is_err(), crashed, "{fault:?}");
        assert_eq!(kv.commits(), if crashed { 2 } else { 3 }, "{fault:?}");
    }
}

#[tokio::test]
async fn hanging_commits_go_on_when_released() {
    for (fault, applied_before) in [(Fault::Hang, false), (Fault::HangAfter, true)] {
        let kv = lossy();
        kv.fail_next(fault);
        let mut commit = kv.commit(put("one"));
        assert!((&mut commit).now_or_never().is_none());
        kv.wait_for_hanging(1).await;
        assert_eq!(written(&kv, "one").await, applied_before);
        kv.release();
        assert!(commit.await.is_ok());
        assert!(written(&kv, "one").await);
        assert_eq!(kv.hanging(), 0);
    }
}

#[tokio::test]
async fn a_crash_ends_hanging_commits_with_what_they_may_have_done() {
    for (fault, effect) in [(Fault::Hang, Effect::None), (Fault::HangAfter, Effect::Unknown)] {
        let kv = lossy();
        kv.fail_next(fault);
        let mut commit = kv.commit(put("one"));
        assert!((&mut commit).now_or_never().is_none());
        kv.crash();
        assert_eq!(commit.await.unwrap_err().effect(), effect);
        assert_eq!(written(&kv, "one").await, effect == Effect::Unknown);
    }
}

#[tokio::test]
async fn a_rule_looks_at_the_writes_and_is_used_once() {
    let kv = lossy();
    kv.fail_when(|ops| ops.iter().any(|op| &op.key()[..] == b"two"), Fault::FailBefore);
    assert!(kv.commit(put("one")).await.is_ok());
    assert!(kv.commit(put("two")).await.is_err());
    assert!(kv.commit(put("two")).await.is_ok());
    assert_eq!((kv.commits(), kv.ops(), kv.reads()), (3, 3, 0));
}

#[tokio::test]
async fn the_time_is_that_of_the_clock_it_was_given() {
    let clock = VirtualClock::at(Timestamp::from_millis(5));
    assert_eq!(lossy().now().await.unwrap(), None, "the backend has no clock");
    let kv = lossy().with_clock(Arc::new(clock.clone()));
    clock.step_wall(2);
    assert_eq!(kv.scoped("a").now().await.unwrap(), Some(Timestamp::from_millis(7)));
}

#[tokio::test]
async fn scopes_share_faults_and_counts() {
    let kv = lossy();
    let scoped = kv.scoped("a");
    kv.fail_next(Fault::FailBefore);
    assert!(scoped.commit(put("one")).await.is_err());
    assert!(scoped.commit(put("one")).await.is_ok());
    assert_eq!(kv.commits(), 2);
    kv.set_down(true);
    assert!(scoped.get(&[]).await.is_err());
    kv.set_down(false);
    assert!(scoped.get(&[]).await.is_ok());
}

/// The journals over a backend, with one event that is handled and answered. Time passes while they wait.
async fn handled_event(kv: &LossyKv) -> Result<(), StoreError> {
    let (seams, clock, _) = test_seams(1);
    let mut handled = pin!(handle_event(kv, seams));
    loop {
        tokio::select! {
            biased;
            result = &mut handled => return result,
            () = clock.wait_for_sleepers(1) => clock.jump(clock.until_next_wake().unwrap_or_default()),
        }
    }
}

async fn handle_event(kv: &LossyKv, seams: Seams) -> Result<(), StoreError> {
    let journals = KvDurability::new(Arc::new(kv.clone()));
    let journal = journals.open(&Scope::default(), "one".into(), Duration::from_secs(60), seams).await?;
    let now = Timestamp::from_millis(1);
    let inbound = Arc::new(Inbound::text("1", "ana", "hi"));
    let event = InboxRecord::working(inbound, 1, journal.owner(), now);
    let (key, chat) = (SendKey::from("1"), ChatId::from("ana"));
    let send = Send { key, chat, content: Content::text("hello"), fingerprint: None, source: None };
    let reply = OutboxRecord::in_flight(send, 1, journal.owner(), now);
    let born = journal.commit(vec![Change::insert(&event), Change::insert(&reply)]).await?;
    let [Cas::Applied(event_version), Cas::Applied(reply_version)] = born[..] else { panic!("{born:?}") };
    let sent = Change::update(reply_version, &reply.sent("m1".into(), now).unwrap());
    let done = Change::update(event_version, &event.finish(now).unwrap());
    journal.commit(vec![sent, done]).await.map(drop)
}

fn journals() -> LossyKv {
    crashable(Arc::new(MemoryKv::new()))
}

#[tokio::test]
async fn the_writes_of_the_journals_are_counted_by_point() {
    let kv = journals();
    handled_event(&kv).await.unwrap();
    let points: Vec<_> = kv.points().into_iter().collect();
    let expected = [
        WritePoint::InboxInsertWorking,
        WritePoint::InboxFinish,
        WritePoint::OutboxInsertInFlight,
        WritePoint::OutboxSent,
        WritePoint::SessionOpen,
    ];
    assert_eq!(points, expected.map(|point| (point, 1)));
    assert_eq!(kv.strange_writes(), 0);
    kv.commit(put("zoo")).await.unwrap();
    assert_eq!(kv.strange_writes(), 1);
}

#[tokio::test]
async fn a_fault_at_a_point_happens_at_the_write_it_was_chosen_for() {
    let kv = journals();
    kv.fault_at(WritePoint::OutboxSent, 2, Fault::CrashAfter);
    handled_event(&kv).await.unwrap();
    assert_eq!(kv.pending_faults(), 1, "the second such write did not come");
    for (amid, left) in [
        (WritePoint::OutboxSent, [WritePoint::InboxInsertWorking, WritePoint::OutboxSent]),
        (WritePoint::InboxFinish, [WritePoint::InboxFinish, WritePoint::OutboxInsertInFlight]),
    ] {
        let kv = journals();
        kv.fault_at(amid, 1, Fault::CrashAmid);
        assert_eq!(handled_event(&kv).await.unwrap_err().effect(), Effect::Unknown);
        assert!(kv.crashed());
        assert_eq!(kv.pending_faults(), 0);
        let scoped = kv.inner().scoped(&Scope::default().id());
        let all = scoped.get(&[Bytes::from("im/ana/1"), Bytes::from("o1")]).await.unwrap();
        let put =
            |entry: Entry, expect| Op::Put { key: entry.key, expect, value: entry.value, index: entry.index };
        let states: Vec<_> = all
            .into_iter()
            .zip(left)
            .map(|(entry, expected)| {
                let born =
                    matches!(expected, WritePoint::InboxInsertWorking | WritePoint::OutboxInsertInFlight);
                let expect = if born { Expect::Absent } else { Expect::Version(Version(1)) };
                WritePoint::of(&put(entry.unwrap(), expect)).unwrap()
            })
            .collect();
        assert_eq!(states, left);
    }
}

#[tokio::test]
async fn a_crash_before_or_after_a_point_leaves_the_backend_to_the_next_process() {
    for (before, written) in [(true, false), (false, true)] {
        let kv = journals();
        match before {
            true => kv.crash_before(WritePoint::OutboxInsertInFlight),
            false => kv.crash_after(WritePoint::OutboxInsertInFlight),
        }
        handled_event(&kv).await.unwrap_err();
        assert!(kv.process().happened());
        let scoped = kv.inner().scoped(&Scope::default().id());
        assert_eq!(scoped.get(&[Bytes::from("o1")]).await.unwrap()[0].is_some(), written);
    }
}
