use botmesh_core::inbound::Inbound;
use botmesh_core::provider::AdmitError;
use botmesh_webhook::admit_all;

use crate::support::{Mood, Sink};

fn texts(count: usize) -> Vec<Inbound> {
    (0..count).map(|number| Inbound::text(number.to_string(), "ana", "hi")).collect()
}

#[tokio::test]
async fn the_events_of_a_post_are_handed_over_in_their_order() {
    let sink = Sink::new(Mood::Takes);
    admit_all(&sink, texts(1000)).await.expect("all are taken over");
    let expected: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    assert_eq!(sink.taken(), expected);
}

#[tokio::test]
async fn an_impossible_event_does_not_hold_up_the_others() {
    let sink = Sink::new(Mood::Takes);
    let mut events = texts(3);
    events.insert(1, Inbound::text("never", "impossible", "hi"));
    admit_all(&sink, events).await.expect("it is not to be posted again");
    assert_eq!(sink.taken(), ["0", "1", "2"]);
}

#[tokio::test]
async fn an_event_that_was_not_taken_over_is_told() {
    let sink = Sink::new(Mood::Refuses);
    let refused = admit_all(&sink, texts(100)).await;
    assert!(matches!(refused, Err(AdmitError::Journal(_))), "{refused:?}");
}
