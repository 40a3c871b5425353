//! How long to look, and what is changed. The tests within the crate look in the same way.

use std::cell::Cell;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;

/// Where a text of bytes is changed, how much is cut out there, and what is put in its place.
pub(crate) type Change = (Index, usize, Vec<u8>);

pub(crate) fn changed(mut bytes: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
    for (at, cut, new) in changes {
        let at = at.index(bytes.len() + 1);
        let end = bytes.len().min(at + cut);
        bytes.splice(at..end, new);
    }
    bytes
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    let words = select(vec![
        "null",
        "-1",
        "1e999",
        "\"\"",
        "{}",
        "[]",
        "[[[[",
        "\\ud83d",
        "\\u0000",
        "9223372036854775808",
        "0.5",
        ",",
        "}",
        "\"id\":7,",
        "\"messages\":[{}],",
    ]);
    let bytes = prop_oneof![
        words.prop_map(|word| word.as_bytes().to_vec()),
        Just(b"\xed\xa0\x80".to_vec()),
        vec(any::<u8>(), 0..8),
    ];
    (any::<Index>(), prop_oneof![Just(0), 1usize..2, 0usize..40], bytes)
}

/// Looks for something that breaks `check`, for as long as `BOTMESH_FUZZ_SECONDS` says; a second without it.
#[expect(clippy::disallowed_methods, reason = "fuzzing is bounded in real time")]
pub(crate) fn fuzz<S: Strategy>(
    what: &str,
    strategy: &S,
    check: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let seconds =
        std::env::var("BOTMESH_FUZZ_SECONDS").map_or(1, |seconds| seconds.parse().expect("seconds"));
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() };
    let (begun, cases) = (Instant::now(), Cell::new(0u64));
    while begun.elapsed() < Duration::from_secs(seconds) {
        let outcome = TestRunner::new(config.clone()).run(strategy, |value| {
            cases.set(cases.get() + 1);
            check(value)
        });
        if let Err(failure) = outcome {
            panic!("{what}: {failure}");
        }
    }
    println!("{what}: {} cases in {:.1} s", cases.get(), begun.elapsed().as_secs_f64());
}
