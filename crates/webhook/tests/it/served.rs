use std::sync::Arc;
use std::time::Duration;

use botmesh_core::CancellationToken;
use botmesh_core::provider::ConnectionState;
use botmesh_webhook::{Limits, ServeError, Server, serve};

use crate::http::{Call, begin_post, get, post};
use crate::support::{Bot, Mood, SIGNED, Sink, bot, start, start_as};

const PATIENT: Duration = Duration::from_secs(30);

async fn status(to: std::net::SocketAddr, path: &str) -> u16 {
    get(to, "GET", path).await.status
}

#[tokio::test]
async fn a_bot_that_stops_is_alive_and_not_ready() {
    let bot = bot(Mood::Takes, Limits::default());
    let (to, served) = start(std::slice::from_ref(&bot), PATIENT).await;
    assert_eq!((status(to, "/live").await, status(to, "/ready").await), (200, 200));
    bot.stop.cancel();
    let mut states = bot.channel.door.connection();
    states.wait_for(|state| *state == ConnectionState::Closed).await.expect("the door closes");
    assert_eq!((status(to, "/live").await, status(to, "/ready").await), (200, 503));
    let answer = post(to, SIGNED, br#"["1"]"#).await;
    assert_eq!(answer.status, 503);
    assert!(answer.has_header("retry-after: 5"), "{}", answer.head);
    bot.stopped.cancel();
    served.await.expect("no panic").expect("it ended as it should");
    assert!(bot.sink.taken().is_empty());
}

#[tokio::test]
async fn a_post_under_way_is_answered_before_the_server_ends() {
    let bot = bot(Mood::Waits, Limits::default());
    let (to, served) = start(std::slice::from_ref(&bot), PATIENT).await;
    let call = begin_post(to, SIGNED, br#"["1"]"#).await;
    bot.sink.calls.subscribe().wait_for(|calls| *calls == 1).await.expect("it is handed over");
    bot.stop.cancel();
    bot.stopped.cancel();
    bot.sink.mood.send_replace(Mood::Takes);
    assert_eq!(call.answer().await.status, 200);
    served.await.expect("no panic").expect("it ended as it should");
}

#[tokio::test]
async fn a_post_that_hangs_does_not_hold_up_the_end_for_ever() {
    let bot = bot(Mood::Waits, Limits::default());
    let (to, served) = start(std::slice::from_ref(&bot), Duration::from_millis(20)).await;
    let _call = begin_post(to, SIGNED, br#"["1"]"#).await;
    bot.sink.calls.subscribe().wait_for(|calls| *calls == 1).await.expect("it is handed over");
    bot.stop.cancel();
    bot.stopped.cancel();
    served.await.expect("no panic").expect("it ended as it should");
}

const HALF: &[u8] = b"POST /hook HTTP/1.1\r\nhost: bo";

#[tokio::test]
async fn half_a_header_takes_the_last_place_for_a_while_only() {
    let bot = bot(Mood::Takes, Limits::default());
    let server = Server::new().with_max_connections(1).with_headers_within(Duration::from_millis(20));
    let (to, _served) = start_as(server, std::slice::from_ref(&bot)).await;
    let slow = Call::write(to, HALF).await;
    assert_eq!(post(to, SIGNED, br#"["1"]"#).await.status, 200);
    slow.until_cut().await;
    assert_eq!(bot.sink.taken(), ["1"]);
}

#[tokio::test]
async fn beyond_the_bound_of_connections_clients_wait_for_a_place() {
    let bot = bot(Mood::Waits, Limits::default());
    let server = Server::new().with_max_connections(1).with_headers_within(PATIENT);
    let (to, _served) = start_as(server, std::slice::from_ref(&bot)).await;
    let first = begin_post(to, SIGNED, br#"["1"]"#).await;
    bot.sink.calls.subscribe().wait_for(|calls| *calls == 1).await.expect("it is handed over");
    let second = begin_post(to, SIGNED, br#"["2"]"#).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*bot.sink.calls.borrow(), 1, "the second has no place");
    bot.sink.mood.send_replace(Mood::Takes);
    assert_eq!((first.answer().await.status, second.answer().await.status), (200, 200));
    assert_eq!(bot.sink.taken(), ["1", "2"]);
}

#[tokio::test]
async fn bots_on_one_listener_have_paths_of_their_own() {
    let (shop, desk) = (bot(Mood::Takes, Limits::default()), bot(Mood::Takes, Limits::default()));
    let (to, served) = start(&[shop.clone(), desk.clone()], PATIENT).await;
    assert_eq!(post(to, SIGNED, br#"["1"]"#).await.status, 200);
    assert_eq!((shop.sink.taken(), desk.sink.taken()), (vec!["1".to_owned()], vec![]));
    desk.stop.cancel();
    desk.stopped.cancel();
    assert_eq!(status(to, "/live").await, 503);
    assert_eq!(post(to, SIGNED, br#"["2"]"#).await.status, 200);
    shop.stop.cancel();
    shop.stopped.cancel();
    served.await.expect("no panic").expect("both ended as they should");
}

#[tokio::test]
async fn a_bot_that_fails_is_told_when_it_ends() {
    let bot = Bot { failure: Some("the journal is damaged"), ..bot(Mood::Takes, Limits::default()) };
    bot.stop.cancel();
    bot.stopped.cancel();
    let router = botmesh_webhook::router("/hook", Arc::clone(&bot.channel));
    let ended = serve(bot, router, "127.0.0.1:0".parse().expect("an address")).await;
    assert!(
        matches!(&ended, Err(ServeError::Bot(error)) if error.to_string().contains("damaged")),
        "{ended:?}"
    );
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let (to, _served) = start(&[bot(Mood::Takes, Limits::default())], PATIENT).await;
    let late = bot(Mood::Takes, Limits::default());
    let router = botmesh_webhook::router("/hook", Arc::clone(&late.channel));
    let refused = serve(late, router, to).await.expect_err("the port is taken");
    assert_eq!(refused.to_string(), format!("cannot listen on {to}"));
}

#[tokio::test]
async fn a_door_is_open_for_one_bot_and_closes_when_its_run_is_dropped() {
    let bot = bot(Mood::Takes, Limits::default());
    let door = &bot.channel.door;
    let run = || door.run(Arc::new(Sink::new(Mood::Takes)), CancellationToken::new());
    {
        let mut first = std::pin::pin!(run());
        let opened = tokio::select! {
            biased;
            _ = &mut first => false,
            () = std::future::ready(()) => true,
        };
        assert!(opened && *door.connection().borrow() == ConnectionState::Open);
        let second = run().await.expect_err("it is running already");
        assert!(!second.retryable, "{second}");
    }
    assert_eq!(*door.connection().borrow(), ConnectionState::Closed);
}
