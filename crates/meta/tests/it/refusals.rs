//! What Graph's codes mean.

use std::fs;
use std::path::Path;
use std::time::Duration;

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::provider::Provider;
use botmesh_testing::{FakeGraph, GraphFault};
use serde_json::Value;

use crate::support::{instagram, messenger, whatsapp};
use crate::whatsapp::send;

pub(crate) async fn refusal(
    graph: &FakeGraph,
    channel: &impl Provider,
    (status, code, subcode): (u16, i64, i64),
) -> ChannelError {
    graph.fault_next(GraphFault::Refuse { status, code, subcode });
    let error = send(channel, "12345", "hi").await.expect_err("a refusal");
    assert_eq!(error.phase, Phase::Answered);
    error
}

/// The name of each sample of a refusal, with its status, code and subcode.
pub(crate) fn samples(folder: &str) -> Vec<(String, (u16, i64, i64))> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/payloads").join(folder).join("errors");
    let read = |file: std::io::Result<fs::DirEntry>| {
        let path = file.expect("a file").path();
        let sample: Value = serde_json::from_slice(&fs::read(&path).expect("a sample")).expect("JSON");
        let number = |path: &str| sample.pointer(path).and_then(Value::as_i64).unwrap_or(0);
        let name = path.file_stem().expect("a name").display().to_string();
        let status = u16::try_from(number("/http_status")).expect("a status");
        (name, (status, number("/body/error/code"), number("/body/error/error_subcode")))
    };
    fs::read_dir(folder).expect("the samples").map(read).collect()
}

#[tokio::test]
async fn the_samples_of_whatsapp_have_the_class_that_says_what_to_do() {
    let (stage, channel) = whatsapp().await;
    for (name, sample) in samples("whatsapp_cloud") {
        let error = refusal(&stage.graph, &channel, sample).await;
        let expected = match &*name {
            "130429_throughput" | "131056_pair_rate" | "80007_waba_rate" => ErrorClass::RateLimited,
            "131009_param" => ErrorClass::Rejected,
            "131030_not_allowed_list" => ErrorClass::RecipientUnreachable,
            "132001_template_missing" => ErrorClass::UnsupportedContent,
            "368_policy" => ErrorClass::Auth,
            name => panic!("{name} is new"),
        };
        assert_eq!(error.class, expected, "{name}");
        assert_eq!(error.code, Some(sample.1.to_string()));
        assert_eq!(error.retryable, expected == ErrorClass::RateLimited, "{name}");
    }
}

#[tokio::test]
async fn the_codes_of_whatsapp_count_and_not_the_status() {
    let (stage, channel) = whatsapp().await;
    for (code, class) in [
        (190, ErrorClass::Auth),
        (10, ErrorClass::Auth),
        (131_047, ErrorClass::OutsideSessionWindow),
        (131_026, ErrorClass::RecipientUnreachable),
        (131_053, ErrorClass::UnsupportedContent),
        (132_015, ErrorClass::UnsupportedContent),
        (131_049, ErrorClass::Rejected),
        (130_472, ErrorClass::Rejected),
        (131_000, ErrorClass::Transient),
        (131_042, ErrorClass::Auth),
        (4, ErrorClass::RateLimited),
        (424_242, ErrorClass::Rejected),
    ] {
        for status in [400, 403, 404] {
            let error = refusal(&stage.graph, &channel, (status, code, 0)).await;
            assert_eq!(error.class, class, "{code} under {status}");
        }
    }
    let unknown = refusal(&stage.graph, &channel, (500, 424_242, 0)).await;
    assert_eq!(unknown.class, ErrorClass::Transient);
    let pair = refusal(&stage.graph, &channel, (400, 131_056, 0)).await;
    assert_eq!(pair.retry_after, Some(Duration::from_secs(4)));
}

#[tokio::test]
async fn a_limit_of_a_pair_counts_for_its_chat_and_every_other_for_all() {
    let seconds = |error: &ChannelError| error.retry_after.map(|wait| wait.as_secs());
    let (stage, channel) = whatsapp().await;
    for (code, all_chats, wait) in
        [(131_056, false, 4), (130_429, true, 1), (80_007, true, 60), (131_048, true, 60), (4, true, 60)]
    {
        let error = refusal(&stage.graph, &channel, (400, code, 0)).await;
        assert_eq!((error.all_chats, seconds(&error)), (all_chats, Some(wait)), "{code}");
    }
    let (stage, channel) = messenger().await;
    for (code, wait) in [(613, 1), (32, 60)] {
        let error = refusal(&stage.graph, &channel, (400, code, 0)).await;
        assert_eq!((error.all_chats, seconds(&error)), (true, Some(wait)), "{code}");
    }
}

#[tokio::test]
async fn the_samples_of_messenger_have_the_class_that_says_what_to_do() {
    let (stage, channel) = messenger().await;
    for (name, sample) in samples("messenger") {
        let error = refusal(&stage.graph, &channel, sample).await;
        let expected = match &*name {
            "100_2018001_no_user" | "551_1545041_unavailable" => ErrorClass::RecipientUnreachable,
            "10_2018065_outside_window_old" => ErrorClass::OutsideSessionWindow,
            "10_2018300_thread_control" => ErrorClass::Rejected,
            "190_token" => ErrorClass::Auth,
            "2_transient" => ErrorClass::Transient,
            name => panic!("{name} is new"),
        };
        assert_eq!((error.class, error.retryable), (expected, expected == ErrorClass::Transient), "{name}");
    }
    for (sample, class) in [
        ((400, 613, 0), ErrorClass::RateLimited),
        ((400, 4, 0), ErrorClass::RateLimited),
        ((403, 200, 0), ErrorClass::RecipientUnreachable),
        ((400, 100, 0), ErrorClass::Rejected),
        ((500, 1200, 0), ErrorClass::Transient),
    ] {
        assert_eq!(refusal(&stage.graph, &channel, sample).await.class, class, "{sample:?}");
    }
}

#[tokio::test]
async fn the_samples_of_instagram_have_the_class_that_says_what_to_do() {
    let (stage, channel) = instagram().await;
    for (name, sample) in samples("instagram") {
        let error = refusal(&stage.graph, &channel, sample).await;
        assert_eq!(error.class, ErrorClass::RecipientUnreachable, "{name}");
    }
    let late = refusal(&stage.graph, &channel, (403, 10, 2_534_022)).await;
    assert_eq!(late.class, ErrorClass::OutsideSessionWindow);
}
