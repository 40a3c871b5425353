use super::{FASTEST_DELAY, FIRST_DELAY, JITTER, policy};

#[test]
fn d14_connections_that_were_lost_together_try_again_at_different_times() {
    let attempts = |_| {
        let mut policy = policy(FASTEST_DELAY, 0);
        let delays: Vec<_> = (0..20).filter_map(|_| policy.next_delay()).collect();
        assert!((u64::from(FIRST_DELAY)..u64::from(FIRST_DELAY + JITTER)).contains(&delays[0]), "{delays:?}");
        assert!(delays.iter().all(|delay| *delay <= u64::from(FASTEST_DELAY)), "{delays:?}");
        delays
    };
    let mut times: Vec<u64> = (0..100).map(attempts).map(|delays| delays.iter().sum()).collect();
    times.sort_unstable();
    let (first, last) = (times[5], times[94]);
    // Nobody gives up to hammer: in the mean, the last delay is three quarters of what it may be.
    assert!(
        last - first > 20 * u64::from(FASTEST_DELAY) / 4,
        "the twentieth attempts are from {first} to {last} ms"
    );
    assert!(first > 20 * u64::from(FASTEST_DELAY) / 3);
}
