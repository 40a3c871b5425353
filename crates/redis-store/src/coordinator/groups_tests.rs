use std::time::Duration;

use botmesh_core::coordinator::Fence;
use futures_util::FutureExt;
use tokio::sync::mpsc;

use super::super::bucket::Bucket;
use super::super::lane::Lane;
use super::*;

#[test]
fn nobody_passes_those_that_wait_for_a_call() {
    let (jobs, _todo) = mpsc::unbounded_channel();
    let lane = Arc::new(Lane::new(0, Bucket::new("p", 0), Fence(0), jobs));
    let (id, valid) = ("r.0".into(), Duration::from_secs(1));
    let session = Arc::new(Session::new(id, "e".into(), Arc::clone(&lane), Duration::ZERO, valid));
    let ask = |seq| Ask { key: "ana".into(), seq, asked: Asked::Enter };
    let mut under_way: Vec<_> =
        (0..16).map(|seq| lane.groups.join(&session, ask(seq)).now_or_never()).collect();
    assert!(under_way.iter().all(Option::is_some));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut waits = std::pin::pin!(lane.groups.join(&session, ask(16)));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(under_way.pop());
    let mut comes_later = std::pin::pin!(lane.groups.join(&session, ask(17)));
    assert!(comes_later.as_mut().poll(&mut context).is_pending());
    let (_, group) = lane.groups.take().unwrap();
    assert_eq!(group.tickets.iter().map(|ticket| ticket.seq).collect::<Vec<_>>(), [16, 17]);
}
