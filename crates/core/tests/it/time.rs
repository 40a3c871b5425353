use botmesh_core::time::Timestamp;

#[test]
fn every_instant_can_be_shown() {
    for (millis, shown) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000 ms after 1970"),
        (i64::MAX, "9223372036854775807 ms after 1970"),
        (-1, "1 ms before 1970"),
        (i64::MIN, "9223372036854775808 ms before 1970"),
    ] {
        assert_eq!(Timestamp::from_millis(millis).to_string(), shown);
    }
}
