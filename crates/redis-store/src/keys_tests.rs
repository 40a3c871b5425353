use botmesh_core::Bytes;
use botmesh_core::id::ConversationKey;
use botmesh_core::kv::{Cursor, Index, Range, Version};
use botmesh_core::time::Timestamp;

use super::{Bounds, Keys, conversation, entry, place, placed, stored, version};

/// What a Cluster hashes of a key.
fn tag(key: &[u8]) -> &[u8] {
    let open = key.iter().position(|byte| *byte == b'{').unwrap();
    let close = key[open + 1..].iter().position(|byte| *byte == b'}').unwrap();
    &key[open + 1..open + 1 + close]
}

#[test]
fn all_keys_of_a_scope_share_a_tag_that_no_other_scope_has() {
    let scopes = ["", "a", "a}", "{a}", "a%7D", "%", "á", "a/b"];
    let mut tags = Vec::new();
    for scope in scopes {
        let keys = Keys::new("p", scope);
        let all = [
            keys.journal(),
            keys.journal_due(),
            keys.journal_lists(),
            keys.clock(),
            keys.chats(),
            keys.user("{u}"),
            keys.checkpoint("c/}"),
            keys.checkpoints_due(),
            keys.checkpoint_bounds(),
            keys.log("}{"),
        ];
        let own = tag(&all[0]).to_vec();
        assert!(all.iter().all(|key| tag(key) == own), "{scope:?}");
        assert!(!tags.contains(&own), "{scope:?} shares its tag");
        tags.push(own);
        let mut names: Vec<_> = all.to_vec();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }
}

#[test]
fn places_are_ordered_as_their_numbers() {
    let numbers = [i64::MIN, i64::MIN + 1, -(1 << 53) - 1, -1, 0, 1, (1 << 53) + 1, i64::MAX - 1, i64::MAX];
    let places = numbers.map(place);
    assert!(places.is_sorted());
    assert_eq!(places.map(|place| placed(&place)), numbers.map(Some));
    assert_eq!(placed(b"short"), None);
}

#[test]
fn an_entry_is_read_as_it_was_stored() {
    let due = Some(Timestamp::from_millis(-7));
    let list = Some((255, i64::MIN));
    for index in [Index::default(), Index { due, list: None }, Index { due: None, list }, Index { due, list }]
    {
        for value in [&b""[..], b"0", b"value\0\xff"] {
            let whole = [&version(Version(1_785_000_000_000_000))[..], &stored(value, index)].concat();
            let found = entry(Bytes::from_static(b"key"), &whole.clone().into()).unwrap();
            assert_eq!(
                (found.version.0, &found.value[..], found.index),
                (1_785_000_000_000_000, value, index)
            );
            // What is cut off within its head is damaged, never another entry.
            for length in 0..whole.len() - value.len() {
                let cut = Bytes::copy_from_slice(&whole[..length]);
                assert!(entry(Bytes::new(), &cut).is_none(), "{length} bytes of {index:?}");
            }
        }
    }
}

#[test]
fn a_conversation_is_read_from_its_encoding_alone() {
    for chat in ["a", "a/b", "a%2Fb", "%", "", "c/", "á"] {
        for key in [ConversationKey::private(chat), ConversationKey::in_group(chat, "p/%25")] {
            assert_eq!(conversation(&key.encode()), Some(key));
        }
    }
    for text in ["", "c", "d/a", "c/a/b/c", "c/a%20"] {
        assert!(conversation(text).is_none_or(|key| key.encode() == text), "{text}");
    }
    assert_eq!(conversation("c/a/b/c"), None);
}

#[test]
fn a_page_begins_at_the_later_of_range_and_cursor() {
    let list = Range::List { bucket: 3, from: 5, until: i64::MAX };
    let first = Bounds::new(list, None);
    assert_eq!(&first.from[..], [&b"[\x03"[..], &place(5)].concat());
    assert_eq!(&first.until[..], b"(\x04");
    let before = Bounds::new(list, Some(&Cursor { place: 4, key: "z".into() }));
    assert_eq!(before.from, first.from);
    let within = Bounds::new(list, Some(&Cursor { place: 5, key: "z".into() }));
    assert_eq!(&within.from[..], [&b"(\x03"[..], &place(5), b"z"].concat());
    let last = Range::List { bucket: 255, from: 0, until: i64::MAX };
    assert_eq!(&Bounds::new(last, None).until[..], b"+");
    let due = Bounds::new(Range::Due { until: Timestamp::from_millis(6) }, None);
    assert_eq!(&due.until[..], [&b"("[..], &place(7)].concat());
}
