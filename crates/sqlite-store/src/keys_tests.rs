use super::*;

#[test]
fn keys_that_end_in_a_number_are_near_to_those_with_the_next_one() {
    for (key, number) in [
        ("im/1000123/5551", 5551),
        ("om/1000123/5551:0", 5551),
        ("om/1000123/5551:0#2", 5551),
        ("ie/-100200/77/0012", 12),
        ("im/4917012345/wamid.HBgM", 0),
        ("s7", 0),
        ("im/ana/", 0),
        ("im/ana/-5", 0),
        ("im/ana/9223372036854775806", i64::MAX - 1),
        ("im/ana/99999999999999999999", i64::MAX),
        ("im/ana/7\0", 0),
        ("", 0),
    ] {
        assert_eq!(near(key.as_bytes()), number, "{key:?}");
    }
}
