use std::future::pending;

use botmesh_core::spawn::Spawner;
use botmesh_testing::{TestSpawner, test_seams};

#[tokio::test]
async fn killed_tasks_end_where_they_wait() {
    let spawner = TestSpawner::new();
    spawner.spawn("forever", Box::pin(pending()));
    spawner.spawn("short", Box::pin(async {}));
    assert_eq!(spawner.running(), ["forever", "short"]);
    spawner.kill_all().await;
    assert!(spawner.running().is_empty());
}

#[tokio::test]
#[should_panic(expected = "the task careless panicked")]
async fn a_panic_does_not_stay_hidden() {
    let spawner = TestSpawner::new();
    spawner.spawn("careless", Box::pin(async { panic!("on purpose") }));
    spawner.join_all().await;
}

#[tokio::test]
async fn the_seams_repeat_from_their_seed() {
    let bits = |seed| test_seams(seed).0.entropy.next_u64();
    assert_eq!(bits(7), bits(7));
    assert_ne!(bits(7), bits(8));
    let (seams, clock, spawner) = test_seams(7);
    let (sleeper, nap) = (seams.clock.clone(), std::time::Duration::from_secs(60));
    seams.spawn("nap", async move { sleeper.sleep(nap).await });
    clock.advance(nap).await;
    assert!(spawner.running().is_empty());
}
