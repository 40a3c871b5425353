use super::*;

#[test]
fn reads_the_version_that_the_tool_prints() {
    assert_eq!(version_in("cargo-deny 0.20.2\n"), Some("0.20.2"));
    assert_eq!(version_in("something else"), None);
}

#[test]
fn an_absent_tool_is_not_the_pinned_one() {
    assert!(!is_pinned(Path::new("no-such-cargo-deny")));
}
