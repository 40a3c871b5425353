//! A server whose clock stands still.

use std::time::Duration;

use botmesh_core::coordinator::{Coordinator as _, Fence, Trouble};
use botmesh_core::time::{Clock as _, SystemClock};
use botmesh_redis_store::{RedisConfig, RedisCoordinator, RedisCoordinatorConfig};
use botmesh_test_servers::{Options, Redis};

const CLOCK: &str = "{botmesh:turns:0}:ahead";

async fn replica(redis: &Redis) -> RedisCoordinator {
    let config = RedisCoordinatorConfig::default().with_lease(Duration::from_secs(1)).with_clock_ahead();
    RedisCoordinator::connect_with(redis.url(), RedisConfig::default(), config).await.unwrap()
}

async fn until_told(replica: &RedisCoordinator, told: bool) {
    let clock = SystemClock::new();
    let limit = clock.monotonic() + Duration::from_secs(30);
    while replica.trouble(Trouble::Clock).is_some() != told {
        assert!(
            clock.monotonic() < limit,
            "that the clock stands still is told: {}, and not within 30 s",
            !told
        );
        clock.sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e07_a_server_whose_clock_stands_still_gives_turns_with_larger_fences_and_is_told_of() {
    let redis = Redis::start(&Options::new()).unwrap();
    let (a, b) = (replica(&redis).await, replica(&redis).await);
    let time = redis.command(&["TIME"]).unwrap().items()[0].text().unwrap();
    redis.command(&["SET", CLOCK, &format!("={time}")]).unwrap();
    let mut last = Fence(0);
    for round in 0..20 {
        let replica = if round % 2 == 0 { &a } else { &b };
        let turn = replica.enter("ana").await.unwrap().granted().await.unwrap();
        assert!(turn.fence() > last, "{:?} after {last:?}", turn.fence());
        last = turn.fence();
        turn.release();
    }
    let held = a.enter("ana").await.unwrap().granted().await.unwrap();
    let mut next = b.enter("ana").await.unwrap();
    a.crash();
    until_told(&b, true).await;
    // Its lease does not end, and nobody takes what it may still have.
    assert!(futures_util::poll!(Box::pin(next.granted())).is_pending());
    redis.command(&["DEL", CLOCK]).unwrap();
    let turn = next.granted().await.unwrap();
    assert!(turn.fence() > held.fence() && turn.check().is_ok());
    until_told(&b, false).await;
}
