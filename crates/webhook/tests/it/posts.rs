use std::time::Duration;

use botmesh_webhook::{Limits, same_secret};

use crate::http::{Call, begin_post, get, post};
use crate::support::{Mood, SIGNED, serve};

#[tokio::test]
async fn a_post_is_answered_empty_and_only_when_its_events_are_taken_over() {
    let (to, bot) = serve(Mood::Waits, Limits::default()).await;
    let call = begin_post(to, SIGNED, br#"["1", "2"]"#).await;
    bot.sink.calls.subscribe().wait_for(|calls| *calls == 2).await.expect("both events are handed over");
    assert!(bot.sink.taken().is_empty());
    bot.sink.mood.send_replace(Mood::Takes);
    let answer = call.answer().await;
    assert_eq!((answer.status, &*answer.body), (200, ""));
    assert_eq!(bot.sink.taken(), ["1", "2"]);
}

#[tokio::test]
async fn whoever_closes_their_side_early_still_gets_the_answer() {
    let (to, bot) = serve(Mood::Waits, Limits::default()).await;
    let call = begin_post(to, SIGNED, br#"["1"]"#).await.closed_on_this_side().await;
    bot.sink.calls.subscribe().wait_for(|calls| *calls == 1).await.expect("it is handed over");
    bot.sink.mood.send_replace(Mood::Takes);
    assert_eq!(call.answer().await.status, 200);
    assert_eq!(bot.sink.taken(), ["1"]);
}

#[tokio::test]
async fn a_journal_that_is_away_asks_for_the_post_again() {
    let (to, bot) = serve(Mood::Refuses, Limits::default()).await;
    let answer = post(to, SIGNED, br#"["1"]"#).await;
    assert_eq!((answer.status, &*answer.body), (503, ""));
    assert!(answer.has_header("retry-after: 5"), "{}", answer.head);
    bot.sink.mood.send_replace(Mood::Takes);
    assert_eq!(post(to, SIGNED, br#"["1"]"#).await.status, 200);
    assert_eq!(bot.sink.taken(), ["1"]);
}

#[tokio::test]
async fn a_bot_without_room_asks_for_the_post_again_after_a_while() {
    let (to, _bot) =
        serve(Mood::Waits, Limits::default().with_answer_within(Duration::from_millis(50))).await;
    let answer = post(to, SIGNED, br#"["1"]"#).await;
    assert_eq!(answer.status, 503);
    assert!(answer.has_header("retry-after: 5"), "{}", answer.head);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let (to, bot) = serve(Mood::Takes, Limits::default().with_answer_within(Duration::from_millis(50))).await;
    let head = format!("POST /hook HTTP/1.1\r\nhost: bot\r\ncontent-length: 9\r\n{SIGNED}\r\n[");
    let answer = Call::write(to, head.as_bytes()).await.answer().await;
    assert_eq!(answer.status, 408);
    assert!(bot.sink.taken().is_empty());
}

#[tokio::test]
async fn a_large_body_is_refused_before_it_is_read() {
    let (to, bot) = serve(Mood::Takes, Limits::default().with_max_body(16)).await;
    let announced = format!("POST /hook HTTP/1.1\r\nhost: bot\r\ncontent-length: 17\r\n{SIGNED}\r\n");
    assert_eq!(Call::write(to, announced.as_bytes()).await.answer().await.status, 413);
    let chunked = format!(
        "POST /hook HTTP/1.1\r\nhost: bot\r\ntransfer-encoding: chunked\r\n{SIGNED}\r\n\
         a\r\n[\"1\",     \r\na\r\n          \r\n"
    );
    assert_eq!(Call::write(to, chunked.as_bytes()).await.answer().await.status, 413);
    assert!(bot.sink.taken().is_empty());
}

#[tokio::test]
async fn a_chunked_body_is_read_as_any_other() {
    let (to, bot) = serve(Mood::Takes, Limits::default()).await;
    let chunked = format!(
        "POST /hook HTTP/1.1\r\nhost: bot\r\nconnection: close\r\ntransfer-encoding: chunked\r\n{SIGNED}\r\n\
         2\r\n[\"\r\n3\r\n1\"]\r\n0\r\n\r\n"
    );
    assert_eq!(Call::write(to, chunked.as_bytes()).await.answer().await.status, 200);
    assert_eq!(bot.sink.taken(), ["1"]);
}

#[tokio::test]
async fn bodies_share_a_bounded_memory() {
    let (to, bot) = serve(Mood::Waits, Limits::default().with_max_memory(12)).await;
    let first = begin_post(to, SIGNED, br#"["1", "2"]"#).await;
    bot.sink.calls.subscribe().wait_for(|calls| *calls == 2).await.expect("they are handed over");
    assert_eq!(post(to, SIGNED, br#"["3"]"#).await.status, 503);
    bot.sink.mood.send_replace(Mood::Takes);
    assert_eq!(first.answer().await.status, 200);
    assert_eq!(post(to, SIGNED, br#"["3"]"#).await.status, 200);
}

#[tokio::test]
async fn a_post_of_a_stranger_is_refused() {
    let (to, bot) = serve(Mood::Takes, Limits::default()).await;
    for header in ["", "x-secret: wrong\r\n"] {
        let answer = post(to, header, br#"["1"]"#).await;
        assert_eq!((answer.status, &*answer.body), (401, ""));
    }
    assert!(bot.sink.taken().is_empty());
}

#[tokio::test]
async fn what_the_headers_refuse_is_answered_before_its_body_comes() {
    let (to, bot) = serve(Mood::Takes, Limits::default()).await;
    let head = "POST /hook HTTP/1.1\r\nhost: bot\r\ncontent-length: 9\r\nx-stranger: yes\r\n\r\n";
    let answer = Call::write(to, head.as_bytes()).await.answer().await;
    assert_eq!((answer.status, &*answer.body), (401, ""));
    assert!(bot.sink.taken().is_empty());
}

#[tokio::test]
async fn the_content_type_does_not_matter() {
    let (to, bot) = serve(Mood::Takes, Limits::default()).await;
    for (id, kind) in ["text/plain", "application/json; charset=UTF-8", "image/png"].into_iter().enumerate() {
        let body = format!(r#"["{id}"]"#);
        let headers = format!("{SIGNED}content-type: {kind}\r\n");
        assert_eq!(post(to, &headers, body.as_bytes()).await.status, 200);
    }
    assert_eq!(bot.sink.taken(), ["0", "1", "2"]);
}

#[tokio::test]
async fn a_compressed_body_is_refused_and_not_misread() {
    let (to, bot) = serve(Mood::Takes, Limits::default()).await;
    let headers = format!("{SIGNED}content-encoding: gzip\r\n");
    assert_eq!(post(to, &headers, b"\x1f\x8b\x08\0\0\0\0\0").await.status, 415);
    assert!(bot.sink.taken().is_empty());
}

#[tokio::test]
async fn a_body_that_says_nothing_is_a_bad_request() {
    let (to, bot) = serve(Mood::Takes, Limits::default()).await;
    for body in [&b""[..], b"\xef\xbb\xbf[]", b"null", b"{}", b"\xff\xfe", b"[[[["] {
        let answer = post(to, SIGNED, body).await;
        assert_eq!((answer.status, &*answer.body), (400, ""), "{body:?}");
    }
    assert_eq!(post(to, SIGNED, b"[]").await.status, 200);
    assert!(bot.sink.taken().is_empty());
}

#[tokio::test]
async fn the_text_of_a_message_is_never_the_answer() {
    let (to, _bot) = serve(Mood::Takes, Limits::default()).await;
    for body in [&br#"["{\"method\":\"sendMessage\"}"]"#[..], br#"{"method":"sendMessage"}"#] {
        assert_eq!(post(to, SIGNED, body).await.body, "");
    }
}

#[tokio::test]
async fn whoever_looks_whether_the_path_is_there_finds_it() {
    let (to, _bot) = serve(Mood::Takes, Limits::default()).await;
    for method in ["GET", "HEAD"] {
        let answer = get(to, method, "/hook").await;
        assert_eq!((answer.status, &*answer.body), (200, ""), "{method}");
    }
    assert_eq!(get(to, "DELETE", "/hook").await.status, 405);
    assert_eq!(get(to, "GET", "/elsewhere").await.status, 404);
}

#[tokio::test]
async fn a_handshake_is_answered_with_its_challenge() {
    let (to, _bot) = serve(Mood::Takes, Limits::default()).await;
    for token in ["a%20b%2Bc", "a+b%2bc"] {
        let answer = get(to, "GET", &format!("/hook?token={token}&challenge=12%263")).await;
        assert_eq!((answer.status, &*answer.body), (200, "12&3"), "{token}");
        assert!(answer.has_header("content-type: text/plain; charset=utf-8"), "{}", answer.head);
    }
    for query in ["token=a+b+c&challenge=1", "challenge=1"] {
        let answer = get(to, "GET", &format!("/hook?{query}")).await;
        assert_eq!((answer.status, &*answer.body), (403, ""), "{query}");
    }
}

#[test]
fn secrets_are_the_same_only_as_a_whole() {
    assert!(same_secret(b"secret", b"secret"));
    for other in [&b"Secret"[..], b"secre", b"secret ", b""] {
        assert!(!same_secret(other, b"secret"));
    }
}
