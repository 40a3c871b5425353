use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh_core::spawn::Spawner;
use botmesh_core::time::{Clock, Timestamp};
use botmesh_testing::{TestSpawner, VirtualClock};
use futures_util::FutureExt;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn sleepers_wake_in_the_order_of_their_deadlines_at_their_own_time() {
    let (clock, spawner) = (VirtualClock::at(Timestamp::from_millis(0)), TestSpawner::new());
    let woken = Arc::new(Mutex::new(Vec::new()));
    for (name, seconds) in [("late", 3), ("first", 1), ("second", 1)] {
        let (clock, woken) = (clock.clone(), Arc::clone(&woken));
        let sleep = async move {
            clock.sleep(SECOND * seconds).await;
            woken.lock().unwrap().push((name, clock.now().as_millis()));
        };
        spawner.spawn(name, Box::pin(sleep));
    }
    clock.wait_for_sleepers(3).await;
    assert_eq!(clock.until_next_wake(), Some(SECOND));
    clock.advance(SECOND * 2).await;
    assert_eq!(*woken.lock().unwrap(), [("first", 1000), ("second", 1000)]);
    clock.advance(SECOND * 2).await;
    assert_eq!(woken.lock().unwrap().last(), Some(&("late", 3000)));
    assert_eq!(clock.now().as_millis(), 4000);
    spawner.join_all().await;
}

#[tokio::test]
async fn a_loop_that_sleeps_again_wakes_again_within_one_advance() {
    let (clock, spawner) = (VirtualClock::new(), TestSpawner::new());
    let ticks = Arc::new(Mutex::new(0));
    let (looping, counted) = (clock.clone(), Arc::clone(&ticks));
    let ticking = async move {
        loop {
            looping.sleep(SECOND).await;
            *counted.lock().unwrap() += 1;
        }
    };
    spawner.spawn("ticking", Box::pin(ticking));
    clock.advance(SECOND * 10).await;
    assert_eq!(*ticks.lock().unwrap(), 10);
    clock.jump(SECOND * 10);
    clock.advance(Duration::ZERO).await;
    assert_eq!(*ticks.lock().unwrap(), 11, "a suspended machine wakes a sleeper once");
    spawner.kill_all().await;
    assert_eq!(clock.sleepers(), 0);
}

#[test]
fn steps_of_the_wall_clock_wake_nobody() {
    let clock = VirtualClock::at(Timestamp::from_millis(5_000));
    let mut sleep = clock.sleep(SECOND);
    clock.step_wall(3_600_000);
    assert_eq!(clock.now().as_millis(), 3_605_000);
    clock.step_wall(-7_200_000);
    assert_eq!(clock.now().as_millis(), -3_595_000);
    clock.set_now(Timestamp::from_millis(7));
    assert_eq!((clock.now().as_millis(), clock.monotonic()), (7, Duration::ZERO));
    assert!((&mut sleep).now_or_never().is_none());
    clock.jump(SECOND);
    assert!(sleep.now_or_never().is_some());
    assert_eq!((clock.now().as_millis(), clock.monotonic()), (1007, SECOND));
}

#[test]
fn a_sleep_counts_from_its_call_and_ends_when_dropped() {
    let clock = VirtualClock::new();
    let sleep = clock.sleep(SECOND);
    clock.jump(SECOND);
    assert!(sleep.now_or_never().is_some(), "it had been called before the jump");
    let dropped = clock.sleep(SECOND);
    assert_eq!(clock.sleepers(), 1);
    drop(dropped);
    assert_eq!((clock.sleepers(), clock.until_next_wake()), (0, None));
    assert!(clock.sleep(Duration::ZERO).now_or_never().is_some());
    assert!(clock.sleep(Duration::MAX).now_or_never().is_none());
}
