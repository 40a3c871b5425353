use super::*;
use crate::core::kv::{Expect, Index};

fn put(key: &'static str, expect: Expect) -> Op {
    Op::Put { key: key.into(), expect, value: "value".into(), index: Index::default() }
}

type Answer = oneshot::Receiver<Result<Vec<Outcome>, StoreError>>;

/// What becomes of commits that all wait when the thread begins, and the log that they leave.
fn served(calls: Vec<(&str, Vec<Op>)>) -> (Vec<Vec<Outcome>>, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path: Arc<Path> = folder.path().join("journals").into();
    let options = FileOptions::default().with_compact_bytes(0);
    let writer = Writer::open(Arc::clone(&path), &options, Arc::default()).unwrap();
    let (messages, waiting) = mpsc::channel(calls.len());
    let answers: Vec<Answer> = calls
        .into_iter()
        .map(|(scope, ops)| {
            let (answer, answered) = oneshot::channel();
            assert!(messages.try_send(Message::Commit(Call { scope: scope.into(), ops, answer })).is_ok());
            answered
        })
        .collect();
    drop(messages);
    writer.run(waiting);
    let answers = answers.into_iter().map(|answer| answer.blocking_recv().unwrap().unwrap()).collect();
    (answers, std::fs::read(format!("{}.log", path.display())).unwrap())
}

/// For each entry of a log, how many before it were not synced when it was written.
fn unsynced(log: &[u8]) -> Vec<u32> {
    let number = |at: usize| u32::from_le_bytes(log[at..at + 4].try_into().unwrap());
    let mut at = 32;
    let mut found = Vec::new();
    while at < log.len() {
        found.push(number(at + 16));
        at += 20 + number(at + 4) as usize;
    }
    found
}

#[test]
fn commits_that_wait_together_share_one_sync() {
    let calls = ["a", "b", "c", "d"].map(|key| ("", vec![put(key, Expect::Absent)]));
    let (outcomes, log) = served(calls.into());
    assert_eq!(outcomes, [1, 2, 3, 4].map(|version| vec![Outcome::Applied(Version(version))]));
    assert_eq!(unsynced(&log), [0, 1, 2, 3]);
}

#[test]
fn a_group_sees_what_it_changed_itself() {
    let stale = Expect::Version(Version(9));
    let (outcomes, log) = served(vec![
        ("", vec![put("k", Expect::Absent), put("k", Expect::Version(Version(1)))]),
        ("", vec![put("k", Expect::Absent), put("other", stale)]),
        ("scope", vec![put("k", Expect::Absent)]),
        ("", vec![Op::Delete { key: "k".into(), expect: Version(2) }, put("k", Expect::Absent)]),
        ("", vec![Op::Delete { key: "k".into(), expect: Version(2) }]),
    ]);
    let (applied, conflict) =
        (|n| Outcome::Applied(Version(n)), |n: u64| Outcome::Conflict(Some(Version(n))));
    let expected: [&[Outcome]; 5] = [
        &[applied(1), applied(2)],
        &[conflict(2), Outcome::Conflict(None)],
        &[applied(3)],
        &[applied(2), applied(4)],
        &[conflict(4)],
    ];
    assert_eq!(outcomes, expected);
    // What only conflicts is not written.
    assert_eq!(unsynced(&log).len(), 3);
}

#[test]
fn a_group_is_bounded_by_its_bytes_and_its_writes() {
    let large = |key: &'static str| {
        let (key, value) = (Bytes::from_static(key.as_bytes()), vec![1; MAX_BYTES / 2].into());
        ("", vec![Op::Put { key, expect: Expect::Absent, value, index: Index::default() }])
    };
    let (_, log) = served(vec![large("a"), large("b"), large("c")]);
    assert_eq!(unsynced(&log), [0, 0, 0]);
    let many = |first: usize| {
        let key = |n: usize| n.to_string().into();
        let put =
            |n| Op::Put { key: key(n), expect: Expect::Absent, value: "".into(), index: Index::default() };
        ("", (first..first + MAX_OPS / 2).map(put).collect::<Vec<_>>())
    };
    let (_, log) = served(vec![many(0), many(MAX_OPS), many(2 * MAX_OPS)]);
    assert_eq!(unsynced(&log), [0, 1, 0]);
}
