//! Shapes of updates that other bots stumbled over.

use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_telegram::{KINDS, Update, parse_update};
use serde_json::{Value, json};

fn update(value: &Value) -> Update {
    parse_update(value.to_string().as_bytes())
}

fn read(value: &Value) -> Inbound {
    update(value).content.expect("an update that can be read")
}

fn payload(name: &str) -> Vec<Value> {
    let path = format!("{}/tests/payloads/updates/{name}.json", env!("CARGO_MANIFEST_DIR"));
    match serde_json::from_str(&std::fs::read_to_string(path).expect("a payload")).expect("JSON") {
        Value::Array(updates) => updates,
        update => vec![update],
    }
}

fn message(fields: &Value) -> Value {
    let mut message = json!({
        "message_id": 5,
        "date": 1_795_950_101,
        "from": { "id": 300, "is_bot": false, "first_name": "Ana" },
        "chat": { "id": 300, "type": "private", "first_name": "Ana" },
    });
    let own = message.as_object_mut().expect("an object");
    own.extend(fields.as_object().expect("an object").clone());
    json!({ "update_id": 9, "message": message })
}

/// Case C29.
#[test]
fn ids_have_more_than_32_bits() {
    for id in [5_025_045_066_i64, 4_503_599_627_370_495, i64::MAX, i64::MIN] {
        let inbound = read(&message(
            &json!({ "from": { "id": id }, "chat": { "id": id, "type": "private" }, "text": "hi" }),
        ));
        assert_eq!(inbound.chat.as_str(), id.to_string());
        assert_eq!(inbound.sender.expect("a sender").id.as_str(), id.to_string());
    }
}

/// Case C31.
#[test]
fn an_edit_is_a_kind_of_its_own_and_no_answer() {
    let inbound = read(&payload("edited_message")[0]);
    let InboundBody::Edit { message, text } = &inbound.body else { panic!("{:?}", inbound.body) };
    assert_eq!((message.as_str(), text.as_str()), ("116", "hola editado"));
    assert!(!inbound.body.is_answer());
}

/// Case C33.
#[test]
fn a_channel_post_has_no_sender() {
    assert_eq!(read(&payload("channel_post_no_from")[0]).sender, None);
}

#[test]
fn whoever_hides_behind_a_chat_is_that_chat() {
    let group = json!({ "id": -1_001_557_912_345_i64, "title": "Super", "type": "supergroup" });
    for (from, sender_chat) in
        [(1_087_968_824_i64, -1_001_557_912_345_i64), (136_817_688, -1_009_876_543_210)]
    {
        let inbound = read(&message(&json!({
            "from": { "id": from, "is_bot": true, "first_name": "Group" },
            "sender_chat": { "id": sender_chat, "title": "News", "type": "channel" },
            "chat": group,
            "text": "hi",
        })));
        let sender = inbound.sender.clone().expect("a sender");
        assert_eq!((sender.id.as_str(), sender.name.as_deref()), (&*sender_chat.to_string(), Some("News")));
        assert!(inbound.group && inbound.conversation().participant.is_some());
    }
}

/// Case C35.
#[test]
fn a_post_that_telegram_copied_into_the_group_of_a_channel_is_marked() {
    let update = update(&payload("message_auto_forward_from_linked_channel")[0]);
    assert!(update.automatic_forward);
    let sender = update.content.expect("a message").sender.expect("a sender");
    assert_eq!(sender.id.as_str(), "777000", "not the channel's own voice");
}

/// Case C37.
#[test]
fn the_pictures_of_an_album_share_its_id_and_keep_their_order() {
    let pictures: Vec<Inbound> = payload("media_group_two_updates").iter().map(read).collect();
    let albums: Vec<_> = pictures.iter().map(|one| one.body.media().expect("media").album.clone()).collect();
    assert_eq!(albums, [Some("13579".to_owned()), Some("13579".to_owned())]);
    let token = &pictures[0].body.media().expect("media").media.token;
    assert_eq!(token["file_id"], "AgACAgQAAxk_Y", "the largest one");
    assert_ne!(pictures[0].record_id(), pictures[1].record_id());
}

/// Case C45.
#[test]
fn what_nobody_knows_yet_is_reported_by_its_name() {
    let unsupported = |inbound: &Inbound| match &inbound.body {
        InboundBody::Unsupported { kind } => kind.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(unsupported(&read(&payload("unknown_message_content")[0])), "hologram");
    let new = json!({ "update_id": 9, "telepathy": { "chat": { "id": -7, "type": "group" }, "from": { "id": 300 } } });
    let inbound = read(&new);
    assert_eq!((unsupported(&inbound).as_str(), inbound.chat.as_str()), ("telepathy", "-7"));
    let bare = read(&json!({ "update_id": 9, "telepathy": 5 }));
    assert_eq!((unsupported(&bare).as_str(), bare.chat.as_str()), ("telepathy", "unknown"));
}

/// Case C47.
#[test]
fn a_vote_that_is_taken_back_has_no_options() {
    let inbound = read(&payload("poll_answer_retracted")[0]);
    let InboundBody::PollVote { options, .. } = &inbound.body else { panic!("{:?}", inbound.body) };
    assert!(options.is_empty());
    assert_eq!(inbound.chat.as_str(), "5025045066", "the voter's private chat");
}

/// Case C49.
#[test]
fn the_chat_of_a_business_account_is_another_one_than_the_bots_own() {
    let business = read(&payload("business_message")[0]);
    assert_eq!(business.chat.as_str(), "5025045066@bc_1");
    assert_ne!(business.chat, read(&payload("message_text")[0]).chat);
}

#[test]
fn what_the_owner_of_a_business_account_writes_is_not_answered() {
    let mut own = payload("business_message")[0].clone();
    own["business_message"]["from"]["id"] = 42.into();
    let inbound = read(&own);
    assert!(!inbound.body.is_answer(), "{:?}", inbound.body);
    let mut ours = payload("business_message")[0].clone();
    ours["business_message"]["sender_business_bot"] = json!({ "id": 777_000_111, "is_bot": true });
    assert!(!read(&ours).body.is_answer());
}

/// Case C51.
#[test]
fn a_deep_link_keeps_its_payload() {
    assert_eq!(read(&payload("message_start_deeplink")[0]).readable_text(), "/start ref_42");
}

/// Case C43.
#[test]
fn both_chats_of_a_migration_say_the_same() {
    let from = message(
        &json!({ "chat": { "id": -1_001_557_912_345_i64, "type": "supergroup" }, "migrate_from_chat_id": -4_012_345_678_i64 }),
    );
    let both = [update(&payload("service_migrate_to")[0]), update(&from)];
    for update in both {
        assert_eq!(update.migrated, Some((-4_012_345_678, -1_001_557_912_345)));
        assert!(!update.content.expect("a message").body.is_answer());
    }
}

#[test]
fn a_topic_is_a_chat_of_its_own_and_a_chain_of_answers_is_not() {
    let supergroup = json!({ "id": -100, "type": "supergroup" });
    let topic =
        read(&message(&json!({ "chat": supergroup, "message_thread_id": 17, "is_topic_message": true,
        "reply_to_message": { "message_id": 17, "forum_topic_created": {} }, "text": "hi" })));
    assert_eq!((topic.chat.as_str(), topic.reply_to), ("-100:17", None));
    let chain = read(&message(&json!({ "chat": supergroup, "message_thread_id": 17,
        "reply_to_message": { "message_id": 17 }, "text": "hi" })));
    assert_eq!((chain.chat.as_str(), chain.reply_to), ("-100", Some("17".into())));
}

#[test]
fn the_title_of_a_pressed_button_is_found_on_its_message() {
    let update = update(&payload("callback_query")[0]);
    assert_eq!(update.callback_query.as_deref(), Some("4382bfdwdsb323b2d9"));
    let inbound = update.content.expect("a press");
    let pressed = InboundBody::Interaction { id: "y".into(), title: "Sí".into() };
    assert_eq!((inbound.body, inbound.message), (pressed, Some("123".into())));
}

/// Case C39.
#[test]
fn an_entity_has_the_text_that_it_is_about_also_after_an_emoji() {
    let entity = |inbound: &Inbound| inbound.extra["entities"][0]["text"].clone();
    assert_eq!(entity(&read(&payload("message_text_emoji_entities")[0])), "/start");
    let bold = |offset: u64, length: u64| {
        let entity = json!({ "type": "bold", "offset": offset, "length": length });
        read(&message(&json!({ "text": "a\u{1F600}b", "entities": [entity] }))).extra
    };
    for (offset, length, text) in [(0, 1, "a"), (1, 2, "\u{1F600}"), (3, 1, "b"), (0, 4, "a\u{1F600}b")] {
        assert_eq!(bold(offset, length)["entities"][0]["text"], text);
    }
    for (offset, length) in [(2, 1), (1, 1), (0, 5), (4, 1), (9, 1), (0, 0), (u64::MAX, 2)] {
        assert_eq!(bold(offset, length), Value::Null, "{offset} {length}");
    }
}

#[test]
fn a_reaction_is_what_was_added() {
    let reacted = |old: Value, new: Value| {
        let value = json!({ "chat": { "id": -7, "type": "group" }, "message_id": 4, "user": { "id": 300 }, "date": 1,
            "old_reaction": old, "new_reaction": new });
        match read(&json!({ "update_id": 9, "message_reaction": value })).body {
            InboundBody::Reaction { message, emoji } => (message.to_string(), emoji),
            other => panic!("{other:?}"),
        }
    };
    let emoji = |emoji: &str| json!({ "type": "emoji", "emoji": emoji });
    assert_eq!(reacted(json!([]), json!([emoji("👍")])), ("4".into(), Some("👍".into())));
    assert_eq!(reacted(json!([emoji("👍")]), json!([emoji("👍"), emoji("🔥")])).1, Some("🔥".into()));
    assert_eq!(reacted(json!([emoji("👍")]), json!([])).1, None);
}

#[test]
fn every_kind_of_update_is_known() {
    let thing = json!({ "id": "q", "message_id": 4, "poll_id": "5", "chat": { "id": 300, "type": "private" },
        "from": { "id": 300 }, "user": { "id": 300 }, "date": 1, "text": "hi", "data": "d", "option_ids": [0] });
    for kind in KINDS {
        let inbound = read(&json!({ "update_id": 9, kind: thing }));
        assert_eq!(inbound.chat.as_str(), "300", "{kind}");
        assert!(!matches!(inbound.body, InboundBody::Unsupported { .. }), "{kind}: {:?}", inbound.body);
    }
}

/// Case A, one bad item among good ones: it is known by its id, and why it cannot be read.
#[test]
fn a_bad_update_keeps_its_id_and_says_what_is_wrong() {
    let deep = format!(r#"{{"update_id":7,"message":{}1{}}}"#, "[".repeat(300), "]".repeat(300));
    for (raw, id, problem) in [
        (r#"{"update_id":7,"message":5}"#, Some(7), "`message`: it has no `chat`"),
        (r#"{"update_id":7,"message":{"chat":{"id":1}}}"#, Some(7), "`message`: it has no `message_id`"),
        (r#"{"update_id":7}"#, Some(7), "says nothing"),
        (r#"{"message":{}}"#, None, "no `update_id`"),
        ("[]", None, "not the JSON that was expected"),
        ("", None, "not the JSON that was expected"),
        ("\u{feff}{}", None, "not the JSON that was expected"),
        (&deep, Some(7), "not the JSON that was expected"),
    ] {
        let update = parse_update(raw.as_bytes());
        assert_eq!(update.id, id, "{raw}");
        let found = update.content.expect_err("it cannot be read");
        assert!(found.contains(problem), "{raw}: {found}");
    }
}

#[test]
fn half_a_character_is_replaced() {
    let raw = r#"{"update_id":7,"message":{"message_id":1,"chat":{"id":3,"type":"private"},"from":{"id":3,"first_name":"\ud83d"},"text":"a\ud83d"}}"#;
    let inbound = parse_update(raw.as_bytes()).content.expect("a message");
    assert_eq!(inbound.readable_text(), "a\u{fffd}");
}

#[test]
fn fields_of_an_unexpected_type_are_as_if_missing() {
    let inbound =
        read(&message(&json!({ "from": "ana", "date": "soon", "reply_to_message": [], "text": "hi" })));
    assert_eq!((inbound.sender, inbound.written_at, inbound.reply_to), (None, None, None));
    assert_eq!(inbound.body, InboundBody::Text { text: "hi".into() });
}
