//! Sends, and how far they came.

use std::collections::BTreeSet;
use std::time::Duration;

use botmesh_core::content::{Button, Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::{ChatId, MessageId};
use botmesh_core::inbound::Inbound;
use botmesh_core::markup::Formatted;
use botmesh_core::media::MediaRef;
use botmesh_core::provider::{Provider, Rate, SendRequest};
use botmesh_telegram::{ChatAction, Telegram};
use botmesh_testing::{FakeTelegram, TelegramFault};
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};

use crate::support::{all_of, bot_of, failure};

const ANA: i64 = 5_025_045_066;

async fn send(bot: &Telegram, chat: i64, content: impl Into<Content>) -> Result<MessageId, ChannelError> {
    let (chat, content) = (ChatId::from(chat.to_string()), content.into());
    Ok(bot.send(SendRequest::new(&chat, &content)).await?.message)
}

#[tokio::test]
async fn a_text_arrives_and_has_an_id_that_can_be_answered() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let message = send(&bot, ANA, "hello").await.expect("a message");
    send(&bot, ANA, Content::text("this one").in_reply_to(message.clone())).await.expect("an answer");
    assert_eq!(ana.replies(), ["hello", "this one"]);
    let reply = &server.done("sendMessage")[1].params["reply_parameters"];
    assert_eq!(reply["message_id"].to_string(), message.as_str());
}

#[tokio::test]
async fn the_answer_to_a_send_names_its_message() {
    let server = FakeTelegram::start().await;
    let bot = bot_of(&server);
    let body = include_str!("../payloads/sendMessage_ok.json").to_owned();
    server.fault_next("sendMessage", TelegramFault::Gateway { status: 200, body });
    assert_eq!(send(&bot, ANA, "ping").await.expect("a message").as_str(), "135");
}

/// Case D69.
#[tokio::test]
async fn an_answer_to_a_message_that_is_gone_arrives_without_it() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    send(&bot, ANA, Content::text("hi").in_reply_to("4")).await.expect("an answer");
    // A server that does not know the permission to send without it.
    server.fault_next(
        "sendMessage",
        TelegramFault::refuse(400, "Bad Request: message to be replied not found"),
    );
    send(&bot, ANA, Content::text("again").in_reply_to("4")).await.expect("an answer");
    assert_eq!(ana.replies(), ["hi", "again"]);
}

/// A server that lets nobody in, and the connections that wait at it for ever: whoever else connects hears nothing at all.
fn black_hole() -> (TcpListener, Vec<std::net::TcpStream>, String) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let listener = socket.listen(0).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300));
    let waiting: Vec<_> = std::iter::repeat_with(connect).take(8).map_while(Result::ok).collect();
    assert!(waiting.len() < 8, "it lets everybody in");
    (listener, waiting, format!("http://{address}"))
}

/// Case D61.
#[tokio::test]
async fn without_a_connection_nothing_was_sent() {
    let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = port.local_addr().expect("an address");
    drop(port);
    let token = "1:secret-of-the-bot";
    let refused = Telegram::polling(token).with_api_url(&format!("http://{address}"));
    let unknown = Telegram::polling(token).with_api_url("http://nobody.invalid");
    // Somebody who never says anything, not even hello.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    let silent = Telegram::polling(token).with_api_url(&url).with_timeout(Duration::from_secs(2));
    let (_listener, _waiting, url) = black_hole();
    let unheard = Telegram::polling(token).with_api_url(&url).with_timeout(Duration::from_secs(2));
    for bot in [refused, unknown, silent, unheard] {
        let error = send(&bot, ANA, "hi").await.expect_err("nobody there");
        assert_eq!(
            (error.class, error.phase, error.retryable),
            (ErrorClass::Transient, Phase::NotWritten, true),
            "{error:?}"
        );
        assert!(!all_of(&error).contains("secret-of-the-bot"), "{}", all_of(&error));
    }
}

#[tokio::test]
async fn a_lost_answer_leaves_it_unknown_whether_it_arrived() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let bot = bot.with_timeout(Duration::from_secs(3));
    for (fault, arrived) in [
        (TelegramFault::LoseAnswer, 1),
        (TelegramFault::CutAnswer, 2),
        (TelegramFault::Slow(Duration::from_secs(30)), 3),
        (TelegramFault::Cut, 3),
    ] {
        server.fault_next("sendMessage", fault.clone());
        let error = send(&bot, ANA, "hi").await.expect_err("no answer");
        assert_eq!(
            (error.class, error.phase),
            (ErrorClass::Transient, Phase::Unknown),
            "{fault:?}: {error:?}"
        );
        assert_eq!(ana.replies().len(), arrived, "{fault:?}");
        assert!(!all_of(&error).contains("FAKE-token"), "{}", all_of(&error));
    }
}

/// Cases D71 and D73.
#[tokio::test]
async fn what_the_server_says_decides_what_becomes_of_a_send() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    ana.blocks();
    let error = send(&bot, ANA, "hi").await.expect_err("a block");
    assert_eq!(
        (error.class, error.phase, error.retryable),
        (ErrorClass::RecipientUnreachable, Phase::Answered, false)
    );
    ana.unblocks();
    let error = send(&bot, 17, "hi").await.expect_err("an unknown chat");
    assert_eq!((error.class, error.retryable), (ErrorClass::RecipientUnreachable, false));
    server.fault_next("sendMessage", TelegramFault::flood(7));
    let error = send(&bot, ANA, "hi").await.expect_err("a flood");
    assert_eq!((error.class, error.retry_after), (ErrorClass::RateLimited, Some(Duration::from_secs(7))));
    let body = "<html>502 Bad Gateway</html>".to_owned();
    server.fault_next("sendMessage", TelegramFault::Gateway { status: 502, body });
    let error = send(&bot, ANA, "hi").await.expect_err("a gateway");
    assert_eq!((error.class, error.phase, error.retryable), (ErrorClass::Transient, Phase::Answered, true));
    server.fault_next("sendMessage", TelegramFault::refuse(500, "Internal Server Error: restart"));
    assert_eq!(send(&bot, ANA, "hi").await.expect_err("a restart").class, ErrorClass::Transient);
    let error = send(&bot, ANA, " \n").await.expect_err("no text");
    assert_eq!(error.class, ErrorClass::UnsupportedContent);
    assert!(ana.replies().is_empty());
}

/// Case C43.
#[tokio::test]
async fn what_was_meant_for_a_group_arrives_in_the_supergroup_that_it_became() {
    let server = FakeTelegram::start().await;
    let (group, bot) = (server.group(-4_012_345_678, "Old group"), bot_of(&server));
    let supergroup = group.migrates(-1_001_557_912_345);
    for text in ["one", "two"] {
        send(&bot, group.id(), text).await.expect("a message");
    }
    assert_eq!(server.texts_to(supergroup.id()), ["one", "two"]);
    let tried = server.calls().iter().filter(|call| call.chat() == Some(group.id())).count();
    assert_eq!(tried, 1, "it is known after the first time");
}

#[tokio::test]
async fn a_message_is_edited_and_an_edit_that_changes_nothing_is_fine() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let tea = Content::text("Tea?").with_buttons([Button::new("y", "Yes")]);
    let message = send(&bot, ANA, tea).await.expect("a message");
    for _ in 0..2 {
        let edit = ContentBody::Edit { message: message.clone(), text: "Tea.".into() };
        assert_eq!(send(&bot, ANA, Content::from(edit)).await.expect("an edit"), message);
    }
    assert_eq!(server.done("editMessageText").len(), 1);
    assert_eq!(ana.replies(), ["Tea?", "Tea."]);
    let reaction = ContentBody::Reaction { message: message.clone(), emoji: Some("👍".into()) };
    assert_eq!(send(&bot, ANA, Content::from(reaction)).await.expect("a reaction"), message);
}

#[tokio::test]
async fn the_caption_of_a_picture_is_edited_as_a_text_is() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let picture = |caption: &str| {
        let source = MediaSource::Url("https://example.org/tea.jpg".into());
        OutboundMedia { source, caption: Some(caption.into()), mime: None, file_name: None }
    };
    let tea = Content::from(ContentBody::Image(picture("Tea?"))).with_buttons([Button::new("y", "Yes")]);
    let message = send(&bot, ANA, tea).await.expect("a picture");
    let edit = || {
        let edit = ContentBody::Edit { message: message.clone(), text: String::new() };
        Content::from(edit).with_text(Formatted::parse("**Tea.**"))
    };
    for _ in 0..2 {
        assert_eq!(send(&bot, ANA, edit()).await.expect("an edit, also one that changes nothing"), message);
    }
    let done = server.done("editMessageCaption");
    assert_eq!(done.len(), 1);
    let bold = json!([{ "type": "bold", "offset": 0, "length": 4 }]);
    assert_eq!((&done[0].params["caption"], &done[0].params["caption_entities"]), (&json!("Tea."), &bold));
    server.fault_next(
        "editMessageCaption",
        TelegramFault::refuse(400, "Bad Request: can't parse entities: no"),
    );
    let coffee = Content::from(ContentBody::Edit { message: message.clone(), text: String::new() })
        .with_text(Formatted::parse("[Coffee](https://example.org)."));
    send(&bot, ANA, coffee).await.expect("an edit");
    assert_eq!(ana.replies(), ["Tea?", "Tea.", "Coffee (https://example.org)."]);

    let place = send(&bot, ANA, ContentBody::Location { latitude: 1.0, longitude: 2.0, name: None }).await;
    let edit = ContentBody::Edit { message: place.expect("a place"), text: "here".into() };
    let error = send(&bot, ANA, edit).await.expect_err("neither a text nor a caption");
    assert!(!error.retryable && error.detail.contains("no caption"), "{error}");
}

#[tokio::test]
async fn a_text_whose_formatting_is_refused_arrives_plain() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let text = Formatted::parse("**Tea** is [here](https://example.org)");
    send(&bot, ANA, Content::from(text.clone())).await.expect("a message");
    server.fault_next("sendMessage", TelegramFault::refuse(400, "Bad Request: can't parse entities: no"));
    send(&bot, ANA, Content::from(text)).await.expect("a message");
    assert_eq!(ana.replies(), ["Tea is here", "Tea is here (https://example.org)"]);
    server.fault_when(|_| Some(TelegramFault::refuse(400, "Bad Request: can't parse entities: no")));
    let error = send(&bot, ANA, "plain").await.expect_err("nothing is left to take away");
    assert_eq!(error.class, ErrorClass::UnsupportedContent);
}

#[tokio::test]
async fn a_file_of_this_host_and_bytes_are_uploaded_with_name_and_caption() {
    let server = FakeTelegram::start().await;
    let (ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bill.pdf");
    std::fs::write(&path, vec![7; 300_000]).expect("a file");
    let media = OutboundMedia {
        source: MediaSource::Path(path.display().to_string()),
        caption: Some("42".into()),
        mime: Some("application/pdf".into()),
        file_name: None,
    };
    send(&bot, ANA, Content::from(ContentBody::Document(media))).await.expect("a document");
    let source = MediaSource::Bytes(vec![7; 1000].into());
    let drawn = OutboundMedia { source, caption: None, mime: None, file_name: Some("chart.png".into()) };
    send(&bot, ANA, Content::from(ContentBody::Image(drawn))).await.expect("a picture");
    assert_eq!(
        server.done("sendDocument")[0].files,
        [("document".to_owned(), "bill.pdf".to_owned(), 300_000)]
    );
    assert_eq!(server.done("sendPhoto")[0].files, [("photo".to_owned(), "chart.png".to_owned(), 1000)]);
    assert_eq!(ana.replies(), ["42"], "a caption is a text, also where it looks like a number");
}

#[tokio::test]
async fn media_is_downloaded_up_to_a_size() {
    let server = FakeTelegram::start().await;
    let bot = bot_of(&server);
    server.add_file("AgAC", vec![7; 1000]);
    let media = |token| MediaRef { provider: "telegram".into(), token };
    let known = media(json!({ "file_id": "AgAC", "size": 1000 }));
    assert_eq!(bot.load_media(&known, 1000).await.expect("a picture").len(), 1000);
    let unknown = media(json!({ "file_id": "AgAC" }));
    for (media, max) in [(&known, 999), (&unknown, 999)] {
        assert_eq!(
            bot.load_media(media, max).await.expect_err("too large").class,
            ErrorClass::PayloadTooLarge
        );
    }
    let calls = server.calls().len();
    bot.load_media(&known, 10).await.expect_err("too large");
    assert_eq!(server.calls().len(), calls, "what is said to be too large is not asked for");
    for token in [json!(null), json!({ "file_id": 5 }), json!("AgAC")] {
        assert_eq!(bot.load_media(&media(token), 10).await.expect_err("no file").phase, Phase::NotWritten);
    }
}

#[tokio::test]
async fn a_bot_says_how_many_messages_telegram_takes_unless_it_is_told_otherwise() {
    let rate = |messages, seconds| Some(Rate::new(messages, Duration::from_secs(seconds)));
    let bot = Telegram::polling("1:secret");
    let of = |bot: &Telegram, chat: &str| bot.chat_rate(&chat.into());
    assert_eq!(bot.capabilities().rate, rate(30, 1));
    for chat in ["5025045066", "5025045066@bc_1"] {
        assert_eq!(of(&bot, chat), rate(5, 5), "{chat}");
    }
    for chat in ["-1001557912345", "-4012345678", "-1001557912345:17", "@news"] {
        assert_eq!(of(&bot, chat), rate(20, 60), "{chat}");
    }
    let off = bot.clone().without_rates();
    assert_eq!((off.capabilities().rate, of(&off, "1"), of(&off, "-1")), (None, None, None));
    let two = Rate::new(2, Duration::from_secs(1));
    let own = off.with_rate(two).with_private_rate(two).with_group_rate(two);
    assert_eq!((own.capabilities().rate, of(&own, "1"), of(&own, "-1")), (Some(two), Some(two), Some(two)));
    let none = failure(&bot.with_group_rate(Rate::new(0, Duration::from_secs(1)))).await;
    assert!(!none.retryable && none.detail.contains("telegram.group_rate"), "{none}");
}

#[tokio::test]
async fn the_chat_sees_what_the_bot_does() {
    let server = FakeTelegram::start().await;
    let (_ana, bot) = (server.user(ANA, "Ana"), bot_of(&server));
    let group = server.group(-4_012_345_678, "Old group");
    let supergroup = group.migrates(-1_001_557_912_345);
    bot.show_typing(&Inbound::text("1", ANA.to_string(), "hi")).await.expect("a sign");
    let shown = [
        ChatAction::Typing,
        ChatAction::UploadPhoto,
        ChatAction::RecordVideo,
        ChatAction::UploadVideo,
        ChatAction::RecordVoice,
        ChatAction::UploadVoice,
        ChatAction::UploadDocument,
        ChatAction::ChooseSticker,
        ChatAction::FindLocation,
        ChatAction::RecordVideoNote,
        ChatAction::UploadVideoNote,
    ];
    for action in shown {
        bot.chat_action(&ANA.to_string().into(), action).await.expect("an action of Telegram");
    }
    let done = server.done("sendChatAction");
    let names: BTreeSet<_> = done.iter().filter_map(|call| call.params["action"].as_str()).collect();
    assert_eq!((done.len(), names.len()), (12, 11));
    assert_eq!(done[0].params["action"], "typing");

    send(&bot, group.id(), "hi").await.expect("a message");
    bot.chat_action(&format!("{}:17", group.id()).into(), ChatAction::Typing).await.expect("a topic");
    let topic = &server.done("sendChatAction")[12].params;
    assert_eq!((&topic["chat_id"], &topic["message_thread_id"]), (&json!(supergroup.id()), &json!(17)));
    let error = bot.chat_action(&"17".into(), ChatAction::Typing).await.expect_err("an unknown chat");
    assert_eq!(error.class, ErrorClass::RecipientUnreachable);
}

#[tokio::test]
async fn any_other_method_can_be_called() {
    let server = FakeTelegram::start().await;
    let bot = bot_of(&server);
    assert_eq!(bot.call("getMe", json!({})).await.expect("an answer")["username"], "demo_bot");
    for (method, params) in [("getMe", json!([])), ("../x", json!({})), ("", json!({}))] {
        assert_eq!(bot.call(method, params).await.expect_err(method).phase, Phase::NotWritten);
    }
    let error = bot.call("danceForMe", json!({})).await.expect_err("no such method");
    assert_eq!((error.class, error.phase), (ErrorClass::Rejected, Phase::Answered));
}

#[tokio::test]
async fn the_token_is_shown_nowhere() {
    let server = FakeTelegram::start().await;
    let bot = bot_of(&server);
    let secret = "FAKE-token_for-tests";
    assert!(!format!("{bot:?} {bot:#?}").contains(secret));
    // A description that repeats it.
    server.fault_next("sendMessage", TelegramFault::refuse(400, &format!("Bad Request: {}", server.token())));
    let error = send(&bot, ANA, "hi").await.expect_err("a refusal");
    assert!(!all_of(&error).contains(secret), "{}", all_of(&error));
}
