use super::*;

#[test]
fn is_shown_as_it_would_be_typed() {
    let shown = Invocation::cargo(["doc", "it's", ""]).with_env("RUSTDOCFLAGS", "-D warnings").to_string();
    assert_eq!(shown, r"RUSTDOCFLAGS='-D warnings' cargo doc 'it'\''s' ''");
}

#[test]
fn a_failure_names_the_command() {
    let error = Invocation::program("false", ["now"]).run(Path::new(".")).unwrap_err();
    assert!(error.starts_with("`false now` failed"), "{error}");
}

#[test]
fn a_missing_program_says_what_to_install() {
    let error = Invocation::program("no-such-program", ["x"]).output(Path::new(".")).unwrap_err();
    assert!(error.contains("could not start") && error.contains("is `no-such-program` installed"), "{error}");
}
