//! What Graph's codes mean.

use std::fs;
use std::path::Path;
use std::time::Duration;

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::provider::{Provider, SendReceipt};
use botmesh_testing::{FakeGraph, GraphFault};
use serde_json::{Value, json};

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

/// A sample of what Graph answers.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Sample {
    fn number(&self, path: &str) -> i64 {
        self.body.pointer(path).and_then(Value::as_i64).unwrap_or(0)
    }

    /// `131047`, or `10/2018278`.
    fn code(&self) -> String {
        let (code, subcode) = (self.number("/error/code"), self.number("/error/error_subcode"));
        if subcode == 0 { code.to_string() } else { format!("{code}/{subcode}") }
    }
}

pub(crate) fn samples(folder: &str) -> Vec<Sample> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/payloads").join(folder).join("errors");
    let read = |file: std::io::Result<fs::DirEntry>| {
        let path = file.expect("a file").path();
        let mut sample: Value = serde_json::from_slice(&fs::read(&path).expect("a sample")).expect("JSON");
        let status = sample["http_status"].as_u64().and_then(|status| u16::try_from(status).ok());
        let name = path.file_stem().expect("a name").display().to_string();
        Sample { name, status: status.expect("a status"), body: sample["body"].take() }
    };
    fs::read_dir(folder).expect("the samples").map(read).collect()
}

/// What becomes of a send that is answered with these headers and this body.
pub(crate) async fn answered(
    graph: &FakeGraph,
    channel: &impl Provider,
    status: u16,
    headers: &[(&str, &str)],
    body: &Value,
) -> Result<SendReceipt, ChannelError> {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    graph.fault_next(GraphFault::Answer { status, headers, body: body.to_string() });
    send(channel, "12345", "hi").await
}

/// The class of the answer of a sample. Its code and words are those of Graph, whole.
async fn class_of(graph: &FakeGraph, channel: &impl Provider, sample: &Sample) -> ErrorClass {
    let Sample { name, status, body } = sample;
    let error = answered(graph, channel, *status, &[], body).await.expect_err(name);
    assert_eq!((error.phase, error.code.as_ref()), (Phase::Answered, Some(&sample.code())), "{name}");
    let said = body["error"]["message"].as_str().expect("a message");
    assert!(error.detail.contains(said), "{name}: {error}");
    assert_eq!(
        error.retryable,
        matches!(error.class, ErrorClass::RateLimited | ErrorClass::Transient),
        "{name}"
    );
    error.class
}

#[tokio::test]
async fn the_samples_of_whatsapp_have_the_class_that_says_what_to_do() {
    let (stage, channel) = whatsapp().await;
    for sample in samples("whatsapp_cloud") {
        let expected = match &*sample.name {
            "130429_throughput" | "131056_pair_rate" | "80007_waba_rate" => ErrorClass::RateLimited,
            "131009_param" => ErrorClass::Rejected,
            "131030_not_allowed_list" => ErrorClass::RecipientUnreachable,
            "132001_template_missing" => ErrorClass::UnsupportedContent,
            "368_policy" => ErrorClass::Auth,
            name => panic!("{name} is new"),
        };
        assert_eq!(class_of(&stage.graph, &channel, &sample).await, expected, "{}", sample.name);
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
    for sample in samples("messenger") {
        let expected = match &*sample.name {
            "100_2018001_no_user" | "551_1545041_unavailable" => ErrorClass::RecipientUnreachable,
            "10_2018065_outside_window_old" => ErrorClass::OutsideSessionWindow,
            "10_2018300_thread_control" => ErrorClass::Rejected,
            "190_token" => ErrorClass::Auth,
            "2_transient" => ErrorClass::Transient,
            name => panic!("{name} is new"),
        };
        assert_eq!(class_of(&stage.graph, &channel, &sample).await, expected, "{}", sample.name);
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
    for sample in samples("instagram") {
        let class = class_of(&stage.graph, &channel, &sample).await;
        assert_eq!(class, ErrorClass::RecipientUnreachable, "{}", sample.name);
    }
    let late = refusal(&stage.graph, &channel, (403, 10, 2_534_022)).await;
    assert_eq!(late.class, ErrorClass::OutsideSessionWindow);
}

/// What Meta says more than a message, and what it says of an error that nobody knows.
#[tokio::test]
async fn all_that_graph_says_of_an_error_is_read() {
    let (stage, channel) = whatsapp().await;
    let details = "Message failed to send because more than 24 hours have passed";
    let error = json!({ "error": {
        "message": "(#131047) Re-engagement message", "type": "OAuthException", "code": 131_047, "fbtrace_id": "A",
        "error_data": { "messaging_product": "whatsapp", "details": details },
    } });
    let error = answered(&stage.graph, &channel, 400, &[], &error).await.expect_err("a refusal");
    assert_eq!(error.class, ErrorClass::OutsideSessionWindow);
    assert_eq!(error.detail, format!("(#131047) Re-engagement message: {details}"));
    for (is_transient, class) in [(json!(true), ErrorClass::Transient), (json!(false), ErrorClass::Rejected)]
    {
        let error = json!({ "error": { "message": "new", "code": 987_654, "is_transient": is_transient } });
        let error = answered(&stage.graph, &channel, 400, &[], &error).await.expect_err("a refusal");
        assert_eq!((error.class, error.retryable), (class, class == ErrorClass::Transient));
    }
}

/// In minutes, in one header for each account and another for the app.
#[tokio::test]
async fn the_headers_say_how_long_to_wait() {
    let (stage, channel) = messenger().await;
    let body = json!({ "error": { "message": "(#32) Page request limit reached", "code": 32 } });
    let business = |minutes: i64| {
        let of = |minutes: i64| json!([{ "type": "pages", "call_count": 101, "estimated_time_to_regain_access": minutes }]);
        ("x-business-use-case-usage", json!({ "100": of(0), "200": of(minutes) }).to_string())
    };
    let app = |usage: Value| ("x-app-usage", usage.to_string());
    let (busy, idle) =
        (json!({ "call_count": 28, "total_time": 25, "total_cputime": 100 }), json!({ "call_count": 99 }));
    for (headers, seconds) in [
        (vec![business(19)], 19 * 60),
        (vec![business(0)], 60),
        (vec![("x-business-use-case-usage", "no JSON".to_owned())], 60),
        (vec![app(busy.clone())], 5 * 60),
        (vec![app(idle)], 60),
        (vec![app(json!({ "estimated_time_to_regain_access": 3 }))], 3 * 60),
        (vec![app(busy.clone()), business(2)], 2 * 60),
        (vec![("retry-after", "7".to_owned()), app(busy)], 7),
    ] {
        let given: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let error = answered(&stage.graph, &channel, 400, &given, &body).await.expect_err("a limit");
        assert_eq!((error.class, error.all_chats), (ErrorClass::RateLimited, true), "{headers:?}");
        assert_eq!(error.retry_after, Some(Duration::from_secs(seconds)), "{headers:?}");
    }
}

fn payload(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/payloads").join(path);
    serde_json::from_slice(&fs::read(path).expect("a payload")).expect("JSON")
}

#[tokio::test]
async fn the_samples_of_good_answers_name_the_message() {
    let (stage, channel) = whatsapp().await;
    let sent = answered(&stage.graph, &channel, 200, &[], &payload("whatsapp_cloud/send_ok.json")).await;
    assert_eq!(sent.expect("a message").message.as_str(), "wamid.SENT1");
    let (stage, channel) = messenger().await;
    let sent = answered(&stage.graph, &channel, 200, &[], &payload("messenger/send_ok.json")).await;
    assert_eq!(sent.expect("a message").message.as_str(), "m_OUT1");
}

/// To somebody without a number, it is the sample but for the key that comes back.
#[tokio::test]
async fn a_text_goes_out_as_in_the_sample() {
    let (stage, channel) = whatsapp().await;
    send(&channel, "US.13491208655302741918", "hola").await.expect("a message");
    let mut sent = stage.graph.sent().pop().expect("a message").body;
    let fields = sent.as_object_mut().expect("an object");
    assert!(fields.remove("biz_opaque_callback_data").is_some());
    assert_eq!(fields.remove("recipient_type"), Some(json!("individual")));
    assert_eq!(sent, payload("whatsapp_cloud/send_text_request_bsuid.json"));
}
