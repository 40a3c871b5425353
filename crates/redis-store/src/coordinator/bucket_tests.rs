use fred::util::redis_keyslot;

use super::bucket::{Bucket, ON_A_CLUSTER, place_of};

#[test]
fn keys_are_where_every_version_looks_for_them() {
    let places = ["", "chat/ana", "provider:telegram", "34600111222@s.whatsapp.net", "c/ñandú/日本"]
        .map(|key| place_of(key, ON_A_CLUSTER));
    assert_eq!(places, [1, 62, 7, 25, 48]);
    assert_eq!(place_of("chat/ana", 1), 0);
}

#[test]
fn keys_that_differ_in_little_are_spread_evenly() {
    let keys: [fn(u32) -> String; 4] = [
        |at| format!("c/{}", 34_600_000_000_u64 + u64::from(at)),
        |at| format!("c/346{at:05}/p{at}"),
        |at| format!("chat{at}"),
        |at| format!("c/{:x}", u64::from(at) * 0x9e37_79b9),
    ];
    for key in keys {
        let mut of = [0_u32; ON_A_CLUSTER];
        for at in 0..6_400 {
            of[place_of(&key(at), ON_A_CLUSTER)] += 1;
        }
        assert!(of.iter().all(|keys| (50..=150).contains(keys)), "{}: {of:?}", key(0));
    }
}

#[test]
fn d10_everything_of_a_bucket_is_in_one_slot_whatever_the_keys_are() {
    for number in 0..ON_A_CLUSTER {
        let bucket = Bucket::new("bot/1", number);
        let slot = redis_keyslot(&bucket.state());
        for key in ["", "chat/ana", "{}", "a}b{c", "{other}", "}:state", "c/ñandú/日本"] {
            for name in bucket.turn(key) {
                assert_eq!(redis_keyslot(&name), slot, "{key}");
            }
            assert_eq!(redis_keyslot(&bucket.lock(key)), slot, "{key}");
        }
    }
}
