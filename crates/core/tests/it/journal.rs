//! The life of records: which transition each state permits, and the form in which they are stored.

use std::sync::Arc;
use std::time::Duration;

use botmesh_core::content::Content;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::inbound::Inbound;
use botmesh_core::journal::{
    Ambiguity, ErrorNote, InboxRecord, InboxState, OnAmbiguous, OutboxRecord, OutboxState, Owner, Refused,
    Send,
};
use botmesh_core::provider::Resolve;
use botmesh_core::time::Timestamp;
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp::from_millis(2_000);
const LATER: Timestamp = Timestamp::from_millis(9_000);
const MAX_ATTEMPTS: u32 = 5;

fn owner(epoch: u64) -> Owner {
    Owner { instance: "desk".into(), epoch }
}

fn working() -> InboxRecord {
    InboxRecord::working(
        Arc::new(Inbound::text("7", "ana", "hi")),
        1_000_001,
        owner(1),
        Timestamp::from_millis(1_000),
    )
}

fn queued() -> InboxRecord {
    InboxRecord::queued(
        Arc::new(Inbound::text("7", "ana", "hi")),
        1_000_001,
        owner(1),
        Timestamp::from_millis(1_000),
    )
}

fn scheduled() -> InboxRecord {
    InboxRecord::scheduled(Arc::new(Inbound::text("7", "ana", "hi")), LATER, NOW)
}

fn inbox(state: InboxState) -> InboxRecord {
    let record = match state {
        InboxState::Scheduled => Ok(scheduled()),
        InboxState::Queued => Ok(queued()),
        InboxState::Working => Ok(working()),
        InboxState::Waiting => working().fail("no", LATER, MAX_ATTEMPTS, NOW),
        InboxState::Done => working().finish(NOW),
        InboxState::Dead => working().fail("no", LATER, 1, NOW),
    };
    record.expect("a record in this state")
}

/// State and attempts after each transition, `None` where it is refused: start, adopt, finish, fail, release, replay,
/// reschedule, skip, abandon.
#[test]
fn an_inbound_record_takes_only_the_transitions_of_its_state() {
    use InboxState::{Dead, Done, Queued, Scheduled, Waiting, Working};
    type Row = (InboxState, [Option<(InboxState, u32)>; 9]);
    let (again, next, skipped) = (Some((Waiting, 0)), Some((Scheduled, 0)), Some((Done, 0)));
    let given_up = Some((Dead, 0));
    let rows: [Row; 6] = [
        (Scheduled, [None, Some((Queued, 0)), None, None, None, again, next, skipped, given_up]),
        (Queued, [Some((Working, 1)), Some((Queued, 0)), None, None, None, None, None, None, None]),
        (
            Working,
            [
                None,
                Some((Queued, 1)),
                Some((Done, 1)),
                Some((Waiting, 1)),
                Some((Queued, 0)),
                None,
                None,
                None,
                None,
            ],
        ),
        (Waiting, [None, Some((Queued, 1)), None, None, None, again, next, None, None]),
        (Done, [None, None, None, None, None, again, next, None, None]),
        (Dead, [None, None, None, None, None, again, next, None, None]),
    ];
    for (state, expected) in rows {
        let record = inbox(state);
        let after =
            |result: Result<InboxRecord, Refused>| result.ok().map(|next| (next.state, next.attempts));
        let found = [
            after(record.start(&owner(1), NOW)),
            after(record.adopt(&owner(2), MAX_ATTEMPTS, NOW)),
            after(record.finish(NOW)),
            after(record.fail("no", LATER, MAX_ATTEMPTS, NOW)),
            after(record.release(NOW)),
            after(record.replay(None, NOW)),
            after(record.reschedule(Arc::clone(&record.inbound), LATER, NOW)),
            after(record.skip(NOW)),
            after(record.abandon("no", NOW)),
        ];
        assert_eq!(found, expected, "{state:?}");
    }
}

#[test]
fn a_scheduled_record_is_found_when_it_is_due_and_listed_by_it() {
    use botmesh_core::journal::Record;
    let record = scheduled();
    assert_eq!((record.index().due, record.index().list), (Some(LATER), Some((6, 9_000))));
    let mut spent = inbox(InboxState::Dead);
    spent.crashes = 2;
    let next = spent.reschedule(Arc::new(Inbound::text("8", "ana", "hi")), LATER, NOW).expect("a transition");
    let state = (next.id.as_str(), next.inbound.event.as_str(), next.crashes, next.error.clone(), next.due);
    assert_eq!(state, ("m/ana/7", "8", 0, None, Some(LATER)));
    assert_eq!(spent.for_event(Arc::new(Inbound::text("8", "ana", "hi"))).id.as_str(), "m/ana/8");
}

#[test]
fn only_its_owner_starts_a_record_and_the_last_attempt_is_the_last() {
    assert!(queued().start(&owner(2), NOW).is_err());
    let mut record = working();
    record.attempts = MAX_ATTEMPTS;
    let adopted = record.adopt(&owner(2), MAX_ATTEMPTS, NOW).expect("a transition");
    assert_eq!((adopted.state, adopted.owner), (InboxState::Dead, None));
    let failed = record.fail("no", LATER, MAX_ATTEMPTS, NOW).expect("a transition");
    assert_eq!((failed.state, failed.due), (InboxState::Dead, None));
    let refused = inbox(InboxState::Done).finish(NOW).expect_err("a refusal");
    assert_eq!(refused.to_string(), "the record m/ana/7 is done and cannot finish");
}

fn send() -> Send {
    let fingerprint = Some(0xfedc_ba98_7654_3210);
    let source = Some("m/ana/7".into());
    Send { key: "m/ana/7:0".into(), chat: "ana".into(), content: Content::text("hello"), fingerprint, source }
}

fn note() -> ErrorNote {
    ErrorNote::from(&ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy").with_code("503"))
}

fn outbox(state: OutboxState) -> OutboxRecord {
    let in_flight = || OutboxRecord::in_flight(send(), 1_000_002, owner(1), Timestamp::from_millis(1_000));
    let record = match state {
        OutboxState::InFlight => Ok(in_flight()),
        OutboxState::Waiting => in_flight().fail(note(), Some(LATER), NOW),
        OutboxState::Sent => in_flight().sent("out-1".into(), NOW),
        OutboxState::Dead => in_flight().fail(note(), None, NOW),
        OutboxState::Unknown => in_flight().give_up_unknown(NOW),
    };
    record.expect("a record in this state")
}

/// State and attempts after each transition, `None` where it is refused: start, sent, fail, give up, retry, confirm, wait
/// behind, cut off, wait for an echo, release.
#[test]
fn a_send_takes_only_the_transitions_of_its_state() {
    use OutboxState::{Dead, InFlight, Sent, Unknown, Waiting};
    type Column = Option<(OutboxState, u32)>;
    let (sent, unknown, waiting, fresh) =
        (Some((Sent, 1)), Some((Unknown, 1)), Some((Waiting, 1)), Some((Waiting, 0)));
    let (again, dead) = (Some((InFlight, 2)), Some((Dead, 1)));
    let echo = outbox(InFlight).await_echo(LATER, NOW).expect("a send in flight");
    let rows: [(OutboxRecord, [Column; 10]); 6] = [
        (outbox(InFlight), [again, sent, waiting, unknown, None, sent, None, None, unknown, fresh]),
        (outbox(Waiting), [again, None, None, None, fresh, sent, waiting, dead, None, None]),
        (outbox(Sent), [None; 10]),
        (outbox(Dead), [None, None, None, None, fresh, sent, None, None, None, None]),
        (outbox(Unknown), [None, None, None, None, fresh, sent, None, None, None, None]),
        (echo, [None, None, waiting, unknown, fresh, sent, None, None, None, None]),
    ];
    for (record, expected) in rows {
        let after =
            |result: Result<OutboxRecord, Refused>| result.ok().map(|next| (next.state, next.attempts));
        let found = [
            after(record.start(&owner(2), NOW)),
            after(record.sent("out-1".into(), NOW)),
            after(record.fail(note(), Some(LATER), NOW)),
            after(record.give_up_unknown(NOW)),
            after(record.retry(None, NOW)),
            after(record.confirm("out-1".into(), NOW)),
            after(record.wait_behind("m/ana/7:9".into(), LATER, NOW)),
            after(record.cut_off(note(), NOW)),
            after(record.await_echo(LATER, NOW)),
            after(record.release(NOW)),
        ];
        assert_eq!(found, expected, "{:?}, awaits an echo: {}", record.state, record.awaits_echo());
    }
}

#[test]
fn a_lost_answer_is_resolved_as_the_channel_and_the_policy_permit() {
    use Ambiguity::{AwaitEcho, GiveUp, LookUp, Repeat, Resend};
    const MINUTE: Duration = Duration::from_secs(60);
    let dedupe = Resolve::Dedupe { window: MINUTE };
    let echo = Resolve::Echo { wait: MINUTE };
    let (young, old) = (Duration::from_secs(59), MINUTE);
    // Under skip, resend and auto.
    for (resolve, age, in_vain, expected) in [
        (Resolve::Never, young, false, [GiveUp, Resend, GiveUp]),
        (Resolve::Lookup, young, false, [LookUp, LookUp, LookUp]),
        (Resolve::Lookup, young, true, [GiveUp, Resend, GiveUp]),
        (dedupe, young, false, [Repeat, Repeat, Repeat]),
        (dedupe, old, false, [GiveUp, Resend, GiveUp]),
        (echo, young, false, [GiveUp, AwaitEcho(MINUTE), AwaitEcho(MINUTE)]),
        (echo, old, true, [GiveUp, Resend, GiveUp]),
    ] {
        let policies = [OnAmbiguous::Skip, OnAmbiguous::Resend, OnAmbiguous::Auto];
        let found = policies.map(|policy| policy.decide(resolve, age, in_vain));
        assert_eq!(found, expected, "{resolve:?} after {age:?}, in vain: {in_vain}");
    }
}

/// Format 1, as every later version must read it.
#[test]
fn the_stored_form_stays_readable() {
    let stored = json!({
        "v": 1, "id": "m/ana/7", "state": "working", "attempts": 1,
        "owner": { "instance": "desk", "epoch": 1 }, "order": 1_000_001, "received": 1_000, "changed": 1_000,
        "inbound": {
            "event": "7", "chat": "ana", "sender": { "id": "ana" }, "body": { "type": "text", "text": "hi" }
        }
    });
    assert_eq!(serde_json::to_value(working()).expect("JSON"), stored);
    assert_eq!(serde_json::from_value::<InboxRecord>(stored).expect("a record"), working());
    let stored = json!({
        "v": 1, "key": "m/ana/7:0", "state": "waiting", "attempts": 1, "order": 1_000_002, "created": 1_000,
        "changed": 2_000, "due": 9_000,
        "error": { "class": "transient", "phase": "answered", "code": "503", "detail": "busy" },
        "fingerprint": "fedcba9876543210", "source": "m/ana/7", "chat": "ana",
        "content": { "body": { "type": "text", "text": "hello" } }
    });
    assert_eq!(serde_json::to_value(outbox(OutboxState::Waiting)).expect("JSON"), stored);
    let mut more: Value = stored;
    more["added_later"] = json!(true);
    assert_eq!(serde_json::from_value::<OutboxRecord>(more).expect("a record"), outbox(OutboxState::Waiting));
}

#[test]
fn a_message_that_was_being_handled_when_the_process_ended_is_suspect_at_the_second_time_or_the_last() {
    let again = |record: &InboxRecord, max| record.adopt(&owner(2), max, NOW).expect("unfinished");
    let once = again(&working(), MAX_ATTEMPTS);
    assert_eq!((once.crashes, once.is_suspect(MAX_ATTEMPTS)), (1, false));
    assert!(once.is_suspect(2), "only the last attempt is left");
    // Not begun when the process ended again.
    assert_eq!(again(&once, MAX_ATTEMPTS).crashes, 1);
    let twice = again(&once.start(&owner(2), NOW).expect("queued"), MAX_ATTEMPTS);
    assert_eq!((twice.attempts, twice.crashes, twice.is_suspect(MAX_ATTEMPTS)), (2, 2, true));
    // What failed by itself did not end the process.
    let failed = working().fail("no", LATER, MAX_ATTEMPTS, NOW).expect("working");
    assert_eq!(again(&failed, MAX_ATTEMPTS).crashes, 0);
    let dead = twice.start(&owner(2), NOW).and_then(|record| record.fail("no", LATER, 1, NOW)).expect("dead");
    assert_eq!(dead.replay(None, NOW).expect("dead").crashes, 0, "an operator begins anew");
}
