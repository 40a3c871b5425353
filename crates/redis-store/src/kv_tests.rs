use botmesh_core::Bytes;
use botmesh_core::kv::{Expect, Index, Op, Outcome, Version};

use super::{MOST_BYTES, MOST_OPS, outcome, parts};

fn puts(count: usize, bytes: usize) -> Vec<Op> {
    let value = Bytes::from(vec![0; bytes]);
    let put = |_| Op::Put {
        key: Bytes::new(),
        expect: Expect::Absent,
        value: value.clone(),
        index: Index::default(),
    };
    (0..count).map(put).collect()
}

fn sizes(ops: &[Op]) -> Vec<usize> {
    parts(ops).map(<[Op]>::len).collect()
}

#[test]
fn a_batch_is_one_call_up_to_its_bounds() {
    assert!(sizes(&[]).is_empty());
    assert_eq!(sizes(&puts(1, 0)), [1]);
    assert_eq!(sizes(&puts(MOST_OPS, 10)), [MOST_OPS]);
    assert_eq!(sizes(&puts(MOST_OPS + 1, 10)), [MOST_OPS, 1]);
    assert_eq!(sizes(&puts(3, MOST_BYTES / 2)), [2, 1]);
    assert_eq!(sizes(&puts(2, MOST_BYTES + 1)), [1, 1]);
}

#[test]
fn outcomes_are_read_exactly() {
    let version = Version(1_785_000_000_000_000);
    assert_eq!(outcome(b"+1785000000000000"), Some(Outcome::Applied(version)));
    assert_eq!(outcome(b"-1785000000000000"), Some(Outcome::Conflict(Some(version))));
    assert_eq!(outcome(b"-"), Some(Outcome::Conflict(None)));
    for other in [&b""[..], b"+", b"17", b"+1.785e15", b"+-1"] {
        assert_eq!(outcome(other), None, "{other:?}");
    }
}
