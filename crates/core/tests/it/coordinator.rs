use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use botmesh_core::async_trait;
use botmesh_core::coordinator::{Coordinator, Fence, MemoryCoordinator, MemoryHub, Ticket, Turn};
use botmesh_core::entropy::SeededEntropy;
use botmesh_core::error::{CoordinationUnavailableReason, LeaseLostReason};
use botmesh_core::time::{Clock, Timestamp};

/// A wall clock set by hand.
#[derive(Default)]
struct HandClock(AtomicI64);

#[async_trait]
impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
    async fn sleep(&self, _: Duration) {}
}

fn hub() -> MemoryHub {
    MemoryHub::new(Arc::new(HandClock::default()))
}

fn replica(hub: &MemoryHub) -> MemoryCoordinator {
    hub.coordinator(&SeededEntropy::new(1))
}

/// Polls once; nobody is woken.
fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn ready<F: Future>(future: F) -> F::Output {
    match poll(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("must be ready at once"),
    }
}

fn waits(ticket: &mut Ticket) -> bool {
    poll(pin!(ticket.granted())).is_pending()
}

fn enter(replica: &MemoryCoordinator, key: &str) -> Ticket {
    ready(replica.enter(key)).unwrap()
}

fn take(ticket: &mut Ticket) -> Turn {
    ready(ticket.granted()).unwrap()
}

fn lost_by(turn: &Turn) -> Option<LeaseLostReason> {
    turn.check().err().map(|lost| lost.reason)
}

#[test]
fn turns_of_a_chat_are_served_in_the_order_of_the_tickets_across_replicas() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    assert_ne!(a.session(), b.session());
    let mut tickets = [enter(&a, "anna"), enter(&b, "anna"), enter(&a, "anna"), enter(&b, "anna")];
    assert!(tickets.windows(2).all(|pair| pair[0].fence() < pair[1].fence()));
    for at in 0..tickets.len() {
        assert!(tickets[at + 1..].iter_mut().all(waits));
        let turn = take(&mut tickets[at]);
        assert_eq!(turn.fence(), tickets[at].fence());
        assert_eq!(turn.check(), Ok(()));
    }
}

#[tokio::test]
async fn a_try_takes_a_free_turn_and_waits_for_none() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let turn = a.try_enter("job").await.unwrap().unwrap();
    assert!(b.try_enter("job").await.unwrap().is_none());
    assert!(a.try_enter("job").await.unwrap().is_none(), "not even the same replica has it twice");
    let mut ticket = enter(&b, "job");
    turn.release();
    assert!(a.try_enter("job").await.unwrap().is_none(), "somebody was before");
    let next = take(&mut ticket);
    assert!(next.fence() > turn.fence());
    next.release();
    assert_eq!(a.try_enter("job").await.unwrap().unwrap().previous_holder(), Some(&b.session()));
    a.close().await;
    assert!(a.try_enter("job").await.is_err());
}

#[tokio::test]
async fn a_turn_tells_whether_the_one_before_was_given_back() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let first = a.try_enter("job").await.unwrap().unwrap();
    assert!(first.was_given_back(), "nobody had it");
    let mut ticket = enter(&b, "job");
    first.release();
    let second = take(&mut ticket);
    assert!(second.was_given_back());
    let mut ticket = enter(&a, "job");
    b.crash();
    let third = take(&mut ticket);
    assert!(!third.was_given_back());
    third.release();
    assert!(a.try_enter("job").await.unwrap().unwrap().was_given_back());
}

#[tokio::test]
async fn a_turn_that_is_abandoned_or_dropped_or_closed_was_not_given_back() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let turn = async |of: &MemoryCoordinator| of.try_enter("chat").await.unwrap().unwrap();
    turn(&a).await.abandon();
    let second = turn(&b).await;
    assert_eq!((second.previous_holder(), second.was_given_back()), (Some(&a.session()), false));
    drop(second);
    let third = turn(&a).await;
    assert_eq!((third.previous_holder(), third.was_given_back()), (Some(&b.session()), false));
    third.release();
    let fourth = turn(&b).await;
    assert_eq!((fourth.previous_holder(), fourth.was_given_back()), (Some(&a.session()), true));
    b.close().await;
    assert!(!turn(&a).await.was_given_back());
}

#[tokio::test]
async fn whoever_comes_after_a_ticket_that_waited_when_its_replica_was_closed_learns_that_something_is_left()
{
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let mut first = enter(&a, "chat");
    let waiting = enter(&b, "chat");
    let mut last = enter(&a, "chat");
    b.close().await;
    drop(waiting);
    take(&mut first).release();
    let turn = take(&mut last);
    assert_eq!((turn.previous_holder(), turn.was_given_back()), (Some(&b.session()), false));
}

#[test]
fn chats_do_not_wait_for_each_other() {
    let replica = replica(&hub());
    let _anna = take(&mut enter(&replica, "anna"));
    let _ben = take(&mut enter(&replica, "ben"));
}

#[tokio::test]
async fn a_waiter_is_woken_when_the_turn_before_it_ends() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let turn = take(&mut enter(&a, "anna"));
    let mut ticket = b.enter("anna").await.unwrap();
    let (granted, ()) = tokio::join!(ticket.granted(), async {
        tokio::task::yield_now().await;
        turn.release();
    });
    assert_eq!(granted.unwrap().previous_holder(), Some(&a.session()));
}

#[test]
fn a_ticket_that_is_dropped_leaves_the_queue() {
    let replica = replica(&hub());
    let turn = take(&mut enter(&replica, "anna"));
    let waiting = enter(&replica, "anna");
    let mut asked = enter(&replica, "anna");
    assert!(waits(&mut asked));
    let granted_unseen = enter(&replica, "anna");
    let mut last = enter(&replica, "anna");
    drop(waiting);
    drop(asked);
    drop(turn);
    assert!(waits(&mut last), "the ticket before it is there and was granted");
    drop(granted_unseen);
    take(&mut last);
}

#[test]
fn a_call_that_was_never_run_leaves_no_ticket() {
    let replica = replica(&hub());
    drop(replica.enter("anna"));
    take(&mut enter(&replica, "anna"));
}

#[test]
fn a_cancelled_wait_keeps_its_place() {
    let replica = replica(&hub());
    let turn = take(&mut enter(&replica, "anna"));
    let mut second = enter(&replica, "anna");
    assert!(waits(&mut second));
    let mut third = enter(&replica, "anna");
    drop(turn);
    assert!(waits(&mut third));
    take(&mut second);
    take(&mut third);
}

#[test]
fn a_turn_ends_with_its_last_clone_or_by_release() {
    let replica = replica(&hub());
    let turn = take(&mut enter(&replica, "anna"));
    let mut next = enter(&replica, "anna");
    let clone = turn.clone();
    drop(turn);
    assert!(waits(&mut next));
    drop(clone);
    let turn = take(&mut next);
    let mut third = enter(&replica, "anna");
    turn.release();
    turn.release();
    assert_eq!(lost_by(&turn), Some(LeaseLostReason::Released));
    let third = take(&mut third);
    drop(turn);
    assert_eq!(third.check(), Ok(()), "a turn that was released gives nothing back when it is dropped");
}

#[test]
fn a13_a_stale_holders_release_does_not_give_the_new_holders_turn_away() {
    let hub = hub();
    let (a, b, c) = (replica(&hub), replica(&hub), replica(&hub));
    let frozen = take(&mut enter(&a, "anna"));
    let mut next = enter(&b, "anna");
    assert!(waits(&mut next));
    // Its lease runs out while it stands still.
    a.crash();
    let held = take(&mut next);
    let mut third = enter(&c, "anna");
    assert!(waits(&mut third));
    // It goes on, and its end of the work runs.
    assert_eq!(lost_by(&frozen), Some(LeaseLostReason::Expired));
    frozen.release();
    drop(frozen);
    assert!(waits(&mut third), "two replicas have the turn");
    assert_eq!(held.check(), Ok(()));
    held.release();
    take(&mut third);
}

#[test]
fn lost_tells_of_a_release_and_of_a_crash() {
    let hub = hub();
    let end: [fn(&MemoryCoordinator, &Turn); 3] =
        [|_, turn| turn.release(), |replica, _| replica.crash(), |replica, _| ready(replica.close())];
    let reasons = [LeaseLostReason::Released, LeaseLostReason::Expired, LeaseLostReason::Released];
    for (end, reason) in end.into_iter().zip(reasons) {
        let replica = replica(&hub);
        let turn = take(&mut enter(&replica, "anna"));
        let mut lost = pin!(turn.lost());
        assert!(poll(lost.as_mut()).is_pending());
        end(&replica, &turn);
        assert_eq!(ready(lost).reason, reason);
        assert_eq!(ready(turn.lost()).reason, reason);
        assert_eq!(lost_by(&turn), Some(reason));
    }
}

#[test]
fn a_replica_that_lost_everything_goes_on_under_a_new_session() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let (before, frozen) = (a.session(), take(&mut enter(&a, "anna")));
    let (mut own_waiter, mut waiter) = (enter(&a, "anna"), enter(&b, "anna"));
    assert!(waits(&mut own_waiter) && waits(&mut waiter));
    a.lose();
    assert_eq!(lost_by(&frozen), Some(LeaseLostReason::Expired));
    let turn = take(&mut waiter);
    assert_eq!(turn.previous_holder(), Some(&before));
    assert_eq!(ready(own_waiter.granted()).unwrap_err().reason, CoordinationUnavailableReason::Down);
    let mut again = enter(&a, "anna");
    assert!(waits(&mut again));
    turn.release();
    let again = take(&mut again);
    assert_ne!(*again.session(), before);
    assert_eq!(again.previous_holder(), Some(&b.session()), "it must not trust what it remembers");
    assert!(again.fence() > frozen.fence());
    a.crash();
    a.lose();
    assert_eq!(ready(a.enter("anna")).unwrap_err().reason, CoordinationUnavailableReason::Down);
}

#[test]
fn the_turn_of_a_crashed_replica_goes_to_the_next_one() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let held = take(&mut enter(&a, "anna"));
    let mut own_waiter = enter(&a, "anna");
    let mut waiter = enter(&b, "anna");
    assert!(waits(&mut own_waiter) && waits(&mut waiter));
    a.crash();
    assert_eq!(lost_by(&held), Some(LeaseLostReason::Expired));
    let turn = take(&mut waiter);
    assert_eq!(turn.previous_holder(), Some(&a.session()));
    let refused = ready(own_waiter.granted()).unwrap_err();
    assert_eq!(refused.reason, CoordinationUnavailableReason::Down);
    assert_eq!(ready(a.enter("ben")).unwrap_err().reason, CoordinationUnavailableReason::Down);
    drop((held, own_waiter));
    assert_eq!(turn.check(), Ok(()));
}

#[test]
fn a_waiter_that_crashes_is_skipped() {
    let hub = hub();
    let (a, b, c) = (replica(&hub), replica(&hub), replica(&hub));
    let held = take(&mut enter(&a, "anna"));
    let _dead = enter(&b, "anna");
    let mut last = enter(&c, "anna");
    b.crash();
    assert_eq!(held.check(), Ok(()));
    assert!(waits(&mut last));
    held.release();
    take(&mut last);
}

#[test]
fn a_ticket_granted_before_the_crash_gives_no_turn_after_it() {
    let hub = hub();
    let replica = replica(&hub);
    let mut head = enter(&replica, "anna");
    replica.crash();
    assert!(ready(head.granted()).is_err());
    take(&mut enter(&hub.coordinator(&SeededEntropy::new(2)), "anna"));
}

#[test]
fn a_closed_coordinator_gives_everything_back_and_refuses() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let held = take(&mut enter(&a, "anna"));
    let mut waiter = enter(&b, "anna");
    ready(a.close());
    ready(a.close());
    assert_eq!(lost_by(&held), Some(LeaseLostReason::Released));
    take(&mut waiter);
    assert!(ready(a.enter("anna")).is_err());
}

#[test]
fn a_turn_outlives_the_coordinator_value_it_came_from() {
    let hub = hub();
    let a = replica(&hub);
    let turn = take(&mut enter(&a, "anna"));
    drop(a);
    assert_eq!(turn.check(), Ok(()));
    let b = replica(&hub);
    let mut waiter = enter(&b, "anna");
    assert!(waits(&mut waiter));
    drop(turn);
    take(&mut waiter);
}

#[test]
fn the_previous_holder_says_whether_memory_is_still_the_latest() {
    let hub = hub();
    let (a, b) = (replica(&hub), replica(&hub));
    let previous = |replica: &MemoryCoordinator| {
        let turn = take(&mut enter(replica, "anna"));
        turn.previous_holder().cloned()
    };
    assert_eq!(previous(&a), None);
    assert_eq!(previous(&a), Some(a.session()));
    assert_eq!(previous(&b), Some(a.session()));
    assert_eq!(previous(&a), Some(b.session()));
}

#[test]
fn a_forgotten_chat_has_no_previous_holder_and_larger_fences() {
    let hub = hub().with_max_idle_keys(2);
    let replica = replica(&hub);
    let turn = |key: &str| {
        let turn = take(&mut enter(&replica, key));
        (turn.fence(), turn.previous_holder().is_some())
    };
    let (first, _) = turn("anna");
    let mut last = first;
    for key in ["ben", "carla"] {
        last = turn(key).0;
    }
    assert!(turn("carla").1 && turn("ben").1);
    let (fence, remembered) = turn("anna");
    assert!(!remembered && fence > last);
}

#[test]
fn fences_follow_time_and_never_go_back() {
    let clock = Arc::new(HandClock::default());
    let hub = MemoryHub::new(clock.clone());
    let replica = replica(&hub);
    let mut last = Fence(0);
    for (now, at_least) in [(5_000, 5_000_000), (5_000, 0), (1, 0), (9_000, 9_000_000), (-1, 0)] {
        clock.0.store(now, Ordering::SeqCst);
        let fence = enter(&replica, "anna").fence();
        assert!(fence > last && fence >= Fence(at_least), "{fence:?} at {now}");
        last = fence;
    }
}

#[derive(Default)]
struct CountWakes(AtomicUsize);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn only_the_next_ticket_is_woken() {
    let replica = replica(&hub());
    let held = take(&mut enter(&replica, "anna"));
    let wakes = [Arc::new(CountWakes::default()), Arc::new(CountWakes::default())];
    let mut tickets = [enter(&replica, "anna"), enter(&replica, "anna")];
    let mut waiting: Vec<_> = tickets.iter_mut().map(|ticket| Box::pin(ticket.granted())).collect();
    for (wait, wakes) in waiting.iter_mut().zip(&wakes) {
        let waker = Waker::from(Arc::clone(wakes));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    for _ in 0..1000 {
        take(&mut enter(&replica, "ben")).release();
    }
    let counts = || wakes.each_ref().map(|wakes| wakes.0.load(Ordering::SeqCst));
    assert_eq!(counts(), [0, 0]);
    held.release();
    assert_eq!(counts(), [1, 0]);
}

#[test]
fn one_holder_at_a_time_whatever_the_threads_do() {
    const KEYS: [&str; 3] = ["anna", "ben", "carla"];
    let hub = hub();
    let held: [AtomicBool; 3] = Default::default();
    let fences: [Mutex<Vec<Fence>>; 3] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (hub, held, fences) = (&hub, &held, &fences);
            scope.spawn(move || {
                let replica = replica(hub);
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    for round in 0..1500 {
                        let at = (round + thread) % KEYS.len();
                        let mut ticket = replica.enter(KEYS[at]).await.unwrap();
                        if round % 7 == 0 {
                            drop(ticket);
                            continue;
                        }
                        let turn = ticket.granted().await.unwrap();
                        assert!(!held[at].swap(true, Ordering::SeqCst));
                        fences[at].lock().unwrap().push(turn.fence());
                        assert!(held[at].swap(false, Ordering::SeqCst));
                        turn.release();
                    }
                });
            });
        }
    });
    for fences in fences {
        assert!(fences.into_inner().unwrap().is_sorted_by(|a, b| a < b));
    }
}

#[test]
fn a_replica_that_stood_still_or_was_cut_off_has_lost_its_turns_and_goes_on() {
    type Fault = fn(&MemoryCoordinator);
    let faults: [(Fault, LeaseLostReason); 2] = [
        (|replica| replica.stall(), LeaseLostReason::Stalled),
        (
            |replica| {
                replica.partition();
                let refused = ready(replica.enter("anna")).unwrap_err();
                assert_eq!(refused.reason, CoordinationUnavailableReason::Down);
                replica.heal();
            },
            LeaseLostReason::CoordinatorLost,
        ),
    ];
    for (fault, reason) in faults {
        let hub = hub();
        let (a, b) = (replica(&hub), replica(&hub));
        let held = take(&mut enter(&a, "anna"));
        let mut waiter = enter(&b, "anna");
        fault(&a);
        assert_eq!((lost_by(&held), ready(held.lost()).reason), (Some(reason), reason));
        take(&mut waiter).release();
        let again = take(&mut enter(&a, "anna"));
        assert_ne!(again.session(), held.session());
    }
}

#[test]
fn a_hub_that_loses_its_data_tells_everybody_and_goes_on() {
    let clock = Arc::new(HandClock::default());
    clock.0.store(9_000, Ordering::SeqCst);
    let hub = MemoryHub::new(clock.clone());
    let (a, b) = (replica(&hub), replica(&hub));
    let held = take(&mut enter(&a, "anna"));
    let mut waiter = enter(&b, "anna");
    assert!(waits(&mut waiter));
    clock.0.store(1, Ordering::SeqCst);
    hub.flush();
    assert_eq!(lost_by(&held), Some(LeaseLostReason::DataLoss));
    assert_eq!(ready(held.lost()).reason, LeaseLostReason::DataLoss);
    assert_eq!(ready(waiter.granted()).unwrap_err().reason, CoordinationUnavailableReason::Down);
    let next = take(&mut enter(&b, "anna"));
    assert!(next.fence() > held.fence());
    let mut queued = enter(&a, "anna");
    drop((held, waiter));
    assert!(waits(&mut queued), "what was lost is given back to nobody's cost");
    assert_eq!(next.check(), Ok(()));
}

#[test]
fn a_hub_whose_clock_is_set_loses_nothing() {
    let hub = hub();
    let replica = replica(&hub);
    let held = take(&mut enter(&replica, "anna"));
    hub.clock_jump(3_600_000);
    let later = enter(&replica, "ben").fence();
    assert!(later >= Fence(3_600_000_000));
    hub.clock_jump(-7_200_000);
    assert!(enter(&replica, "carla").fence() > later);
    assert_eq!(held.check(), Ok(()));
}

#[test]
fn more_tickets_than_may_wait_are_refused() {
    let hub = hub().with_max_waiters(1);
    let replica = replica(&hub);
    let held = take(&mut enter(&replica, "anna"));
    let mut waiter = enter(&replica, "anna");
    let refused = ready(replica.enter("anna")).unwrap_err();
    assert_eq!(refused.reason, CoordinationUnavailableReason::Overloaded);
    take(&mut enter(&replica, "ben"));
    held.release();
    take(&mut waiter);
    take(&mut enter(&replica, "anna"));
}

#[test]
fn a_lock_ends_when_its_time_is_over_and_not_before() {
    let clock = Arc::new(HandClock::default());
    let hub = MemoryHub::new(clock.clone());
    let (a, b) = (replica(&hub), replica(&hub));
    let ttl = Duration::from_secs(10);
    let lock =
        |who: &MemoryCoordinator, token: &str| ready(who.acquire_lock_fenced("job", token, ttl)).unwrap();
    let first = lock(&a, "a").unwrap();
    for (now, is_held) in [(9_999, true), (5_000, true), (5_001, false)] {
        clock.0.store(now, Ordering::SeqCst);
        assert_eq!(lock(&b, "b").is_none(), is_held, "at {now}: what is set back lasts no shorter");
    }
    assert_eq!(ready(a.renew_lock("job", "a", ttl)).unwrap(), None);
    hub.flush();
    assert!(lock(&a, "a").unwrap() > first, "a lock is lost with the data, and fences go on");
    a.partition();
    assert_eq!(ready(a.release_lock("job", "a")).unwrap_err().reason, CoordinationUnavailableReason::Down);
}
