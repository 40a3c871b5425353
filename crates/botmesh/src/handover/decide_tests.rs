use super::*;
use crate::core::coordinator::Fence;
use crate::core::store::{Midway, RecordedAnswer};

const NOW: Timestamp = Timestamp::from_millis(100_000);
const HERE: &str = "fingerprint";

/// This process, another one, and this one before it lost its session.
const OWN: &str = "own.1";
const OTHER: &str = "other.0";
const BEFORE: &str = "own.0";

fn row(writer: &str) -> Checkpoint {
    Checkpoint {
        flow: "signup".into(),
        version: 1,
        fingerprint: HERE.into(),
        step: "name".into(),
        phase: CheckpointPhase::Waiting,
        state: serde_json::Value::Null,
        begun_with: None,
        input: Some("m/1".into()),
        sends: 1,
        input_order: None,
        earlier: Vec::new(),
        answer: None,
        midway: None,
        callers: Vec::new(),
        deadline: None,
        expires: None,
        due: None,
        revision: Revision(7),
        fence: Fence(7),
        session: writer.into(),
    }
}

fn forwarded(writer: &str, expires: i64) -> Checkpoint {
    Checkpoint { expires: Some(Timestamp::from_millis(expires)), ..row(writer) }
}

fn stub(writer: &str) -> Checkpoint {
    Checkpoint { phase: CheckpointPhase::Stub, ..row(writer) }
}

fn ended(writer: &str) -> Checkpoint {
    Checkpoint { phase: CheckpointPhase::Ended, ..row(writer) }
}

fn asked(writer: &str, question: u32) -> Checkpoint {
    Checkpoint { midway: Some(Midway { question, ..Midway::default() }), ..row(writer) }
}

fn until(writer: &str, deadline: i64) -> Checkpoint {
    Checkpoint { deadline: Some(Timestamp::from_millis(deadline)), ..row(writer) }
}

/// A step that was cut short, with the answer that this record has.
fn cut(writer: &str, record: Option<&str>) -> Checkpoint {
    let answer = RecordedAnswer { record: record.map(Into::into), inbound: None, text: None, received: NOW };
    Checkpoint { phase: CheckpointPhase::Running, answer: Some(answer), ..row(writer) }
}

fn begun(writer: &str) -> Checkpoint {
    Checkpoint { phase: CheckpointPhase::Running, ..row(writer) }
}

struct Row {
    /// The rule.
    says: &'static str,
    local: Option<Checkpoint>,
    shared: Option<Checkpoint>,
    live: bool,
    previous: Option<&'static str>,
    record: Option<&'static str>,
    comes_to: Decision,
}

/// A message `m/2` comes to a chat that another replica had before.
fn when(says: &'static str, shared: Checkpoint, comes_to: Decision) -> Row {
    let (previous, record) = (Some(OTHER), Some("m/2"));
    Row { says, local: None, shared: Some(shared), live: false, previous, record, comes_to }
}

/// A message `m/2` comes to a chat of which this process noted `local`.
fn at_home(says: &'static str, local: Checkpoint, previous: Option<&'static str>, comes_to: Decision) -> Row {
    let (local, record) = (Some(local), Some("m/2"));
    Row { says, local, shared: None, live: true, previous, record, comes_to }
}

fn of_persistent_flows() -> Vec<Row> {
    use Decision::GoOn;
    vec![
        when(
            "a persistent flow goes on from its checkpoint: what it asked first in its step is not asked again",
            row(OTHER),
            GoOn(Feed::Answer),
        ),
        when(
            "so it is with the first question of a step that asks on its own",
            asked(OTHER, 1),
            GoOn(Feed::Answer),
        ),
        when("a step that waits at a later question begins again", asked(OTHER, 2), GoOn(Feed::Again)),
        when("a step whose replica died before it asked begins again", begun(OTHER), GoOn(Feed::Again)),
        when(
            "a persistent flow goes on where it was changed: its step is found by its id",
            Checkpoint { fingerprint: "changed".into(), ..row(OTHER) },
            GoOn(Feed::Answer),
        ),
        Row {
            live: true,
            previous: Some(OWN),
            ..when(
                "what a replica has in memory goes on there while it keeps the chat",
                asked(OWN, 2),
                GoOn(Feed::Live),
            )
        },
        Row {
            local: None,
            live: true,
            ..when(
                "a replica drops what it has in memory when another one went on: it reads the checkpoint",
                Checkpoint { revision: Revision(9), ..row(OTHER) },
                GoOn(Feed::Answer),
            )
        },
    ]
}

fn of_other_flows() -> Vec<Row> {
    use Decision::{Fallback, GoOn, Route};
    vec![
        Row { shared: None, ..when("a flow that is not persistent is lost", row(OTHER), Route) },
        at_home("the replica that had it drops it as well", row(OWN), Some(OTHER), Route),
        at_home(
            "it goes on in the replica that handled its chat last",
            row(OWN),
            Some(OWN),
            GoOn(Feed::Live),
        ),
        at_home(
            "so it does where that lost its session in between, and nobody took the chat",
            row(BEFORE),
            Some(BEFORE),
            GoOn(Feed::Live),
        ),
        at_home(
            "also if it had the chat since, under its new session",
            row(BEFORE),
            Some(OWN),
            GoOn(Feed::Live),
        ),
        Row {
            shared: Some(ended(OWN)),
            ..at_home("what is over in the store does not speak for its memory", row(OWN), Some(OTHER), Route)
        },
        at_home("if it is forgotten who had the chat, what is in memory may be old", row(OWN), None, Route),
        when("a forwarded flow goes on", forwarded(OTHER, 100_001), GoOn(Feed::Answer)),
        when("it expires", forwarded(OTHER, 100_000), Route),
        when(
            "after a graceful stop the replica that starts again is another one: within the time it goes on",
            forwarded(BEFORE, 100_001),
            GoOn(Feed::Answer),
        ),
        Row {
            previous: Some(OWN),
            ..when("it does not expire for the replica that wrote it", forwarded(OWN, 1), GoOn(Feed::Answer))
        },
        when(
            "a forwarded flow that was changed does not go on",
            Checkpoint { fingerprint: "changed".into(), ..forwarded(OTHER, 100_001) },
            Fallback(InterruptedReason::Changed),
        ),
        when(
            "of what changed and expired nobody is told",
            Checkpoint { fingerprint: "changed".into(), ..forwarded(OTHER, 1) },
            Route,
        ),
        when(
            "code that waits in the memory of another replica does not go on",
            stub(OTHER),
            Fallback(InterruptedReason::InMemory),
        ),
        Row {
            shared: Some(stub(OWN)),
            ..at_home(
                "the stub does not concern the replica that has the code",
                row(OWN),
                Some(OWN),
                GoOn(Feed::Live),
            )
        },
        Row {
            shared: Some(stub(OWN)),
            ..at_home("also where it is forgotten who had the chat", row(OWN), None, GoOn(Feed::Live))
        },
        Row {
            shared: Some(row(OWN)),
            live: false,
            ..at_home(
                "what is over in memory does not hide what goes on in the store",
                ended(OWN),
                Some(OWN),
                GoOn(Feed::Answer),
            )
        },
        Row {
            shared: Some(stub(OTHER)),
            ..at_home(
                "what is in memory is dropped for a stub of another replica",
                row(OWN),
                Some(OTHER),
                Fallback(InterruptedReason::InMemory),
            )
        },
    ]
}

fn of_answers() -> Vec<Row> {
    use Decision::{Done, GoOn, Overdue, Route};
    let again =
        |says, shared: Checkpoint, comes_to| Row { record: Some("m/1"), ..when(says, shared, comes_to) };
    vec![
        when(
            "a step that was cut short gets its answer again, and the message is for the next question",
            cut(OTHER, Some("m/1")),
            GoOn(Feed::Recorded),
        ),
        when("so it does without durability", cut(OTHER, None), GoOn(Feed::Recorded)),
        again(
            "the answer itself, when it runs again, is that answer",
            cut(OTHER, Some("m/1")),
            GoOn(Feed::Answer),
        ),
        Row {
            record: None,
            ..when("without records no message is a known answer", cut(OTHER, None), GoOn(Feed::Recorded))
        },
        again("a message whose effects are stored is only acknowledged", row(OTHER), Done),
        again("also if it ended the conversation", ended(OTHER), Done),
        Row {
            record: Some("m/0"),
            ..when(
                "also if others came after it",
                Checkpoint { earlier: vec!["m/0".into()], ..row(OTHER) },
                Done,
            )
        },
        when("a conversation that is over gets no message", ended(OTHER), Route),
        when(
            "a message that was handled before, and that a later one overtook, is no answer",
            Checkpoint { input_order: Some(6), ..row(OTHER) },
            Route,
        ),
        when(
            "so it is if the later one has the same place, given by another process",
            Checkpoint { input_order: Some(5), ..row(OTHER) },
            Route,
        ),
        when(
            "nor does it concern a conversation that began later elsewhere",
            Checkpoint { input_order: Some(6), ..stub(OTHER) },
            Route,
        ),
        when(
            "one that comes again in its place is an answer",
            Checkpoint { input_order: Some(4), ..row(OTHER) },
            GoOn(Feed::Answer),
        ),
        when(
            "what came in time is an answer, however late it is handled",
            until(OTHER, 50_001),
            GoOn(Feed::Answer),
        ),
        when("what came too late ends the wait", until(OTHER, 50_000), Overdue),
    ]
}

#[test]
fn every_rule_of_a_hand_over() {
    let rows: Vec<Row> =
        [of_persistent_flows(), of_other_flows(), of_answers()].into_iter().flatten().collect();
    assert_eq!(rows.len(), 39);
    for Row { says, local, shared, live, previous, record, comes_to } in rows {
        let (own, previous) = (SessionId::from(OWN), previous.map(SessionId::from));
        let found = Found {
            coordinated: true,
            session: &own,
            previous: previous.as_ref(),
            now: NOW,
            local: local.as_ref(),
            shared: shared.as_ref(),
            live: live.then_some(Revision(7)),
            changed: shared.as_ref().is_some_and(|row| row.fingerprint != HERE),
        };
        let record = record.map(RecordId::from);
        let message = Message {
            record: record.as_ref(),
            received: Timestamp::from_millis(50_000),
            handled_order: Some(5),
        };
        assert_eq!(decide(&found, &message), comes_to, "{says}");
    }
}

#[test]
fn a_bot_that_is_alone_trusts_its_memory() {
    let own = SessionId::from(OWN);
    let noted = row(BEFORE);
    let found = Found {
        coordinated: false,
        session: &own,
        previous: None,
        now: NOW,
        local: Some(&noted),
        shared: None,
        live: Some(Revision(7)),
        changed: false,
    };
    let message = Message { record: None, received: NOW, handled_order: None };
    assert_eq!(decide(&found, &message), Decision::GoOn(Feed::Live));
}
