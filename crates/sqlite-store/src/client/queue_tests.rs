use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::*;

/// Polls a future once.
fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn push(queue: &Queue<u32>, weight: u32, job: u32) -> Poll<Result<(), Closed>> {
    poll(std::pin::pin!(queue.push(weight, job)))
}

#[test]
fn takes_in_order_up_to_the_bound() {
    let queue = Queue::new(100);
    for job in 0..5 {
        assert_eq!(push(&queue, 10, job), Poll::Ready(Ok(())));
    }
    let mut jobs = Vec::new();
    assert_eq!(queue.take(25, None, &mut jobs), (Taken::Jobs, 20));
    assert_eq!(jobs, [0, 1]);
    jobs.clear();
    assert_eq!(queue.take(1, None, &mut jobs), (Taken::Jobs, 10), "at least one job, however heavy");
    assert_eq!(jobs, [2]);
}

#[test]
fn a_full_queue_makes_pushers_wait_until_jobs_are_finished() {
    let queue = Queue::new(10);
    assert_eq!(push(&queue, 10, 0), Poll::Ready(Ok(())));
    let mut second = std::pin::pin!(queue.push(1, 1));
    assert!(poll(second.as_mut()).is_pending());
    let mut jobs = Vec::new();
    let (_, weight) = queue.take(10, None, &mut jobs);
    assert!(poll(second.as_mut()).is_pending(), "a job counts until it is finished");
    queue.finished(weight);
    assert_eq!(poll(second.as_mut()), Poll::Ready(Ok(())));
}

#[test]
fn a_job_heavier_than_the_queue_still_fits_alone() {
    let queue = Queue::new(10);
    assert_eq!(push(&queue, 1_000, 7), Poll::Ready(Ok(())));
    assert_eq!(queue.take(5, None, &mut Vec::new()), (Taken::Jobs, 10));
}

#[test]
fn closing_serves_what_is_queued_and_refuses_the_rest() {
    let queue = Queue::new(2);
    assert_eq!(push(&queue, 2, 0), Poll::Ready(Ok(())));
    let mut waiting = std::pin::pin!(queue.push(1, 1));
    assert!(poll(waiting.as_mut()).is_pending());
    queue.close();
    assert_eq!(poll(waiting.as_mut()), Poll::Ready(Err(Closed)));
    assert_eq!(push(&queue, 1, 2), Poll::Ready(Err(Closed)));
    let mut jobs = Vec::new();
    assert_eq!(queue.take(9, None, &mut jobs).0, Taken::Jobs);
    assert_eq!(queue.take(9, None, &mut jobs).0, Taken::Closed);
    assert_eq!(jobs, [0]);
}

#[test]
fn patience_ends() {
    let queue: Queue<u32> = Queue::new(1);
    assert_eq!(queue.take(1, Some(Duration::from_millis(1)), &mut Vec::new()), (Taken::Idle, 0));
}

#[test]
fn a_taker_that_dies_drops_the_jobs() {
    let queue = Queue::new(4);
    let job = Arc::new(());
    assert_eq!(poll(std::pin::pin!(queue.push(1, Arc::clone(&job)))), Poll::Ready(Ok(())));
    drop(queue.taker());
    assert_eq!(Arc::strong_count(&job), 1);
    assert_eq!(poll(std::pin::pin!(queue.push(1, job))), Poll::Ready(Err(Closed)));
}
