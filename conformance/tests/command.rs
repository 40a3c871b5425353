//! The command does what its help says, and refuses what it cannot do.
#![cfg(feature = "cli")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::{Command, Output};

fn conformance(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conformance")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_backend_of_another_build_is_named_as_such() {
    let output = conformance(&["postgres"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("backend postgres is not part of this build; present: memory"), "{error}");
}

#[test]
fn a_backend_without_its_server_says_how_to_provide_one() {
    let program = env!("CARGO_BIN_EXE_conformance");
    let run =
        |args: &[&str]| Command::new(program).args(args).env_remove("BOTMESH_REDIS_URL").output().unwrap();
    let case = "kv::an_empty_batch_is_no_write";
    let output = run(&["redis", "--suite", case]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains("backend redis cannot run here") && error.contains("BOTMESH_REDIS_URL"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let output = run(&["--suite", case, "--out", &out]);
    assert_eq!(output.status.code(), Some(0), "it does not run unless it is named");
    assert!(!text(&output.stdout).contains("redis"));
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let output = conformance(&["rediss"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains("no backend is called rediss; the names are memory, file, sqlite, events, redis"),
        "{error}"
    );
    let output = conformance(&["memory", "--suite", "kvv"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("no suite or case is called kvv; the suites are kv, store"), "{error}");
    assert_eq!(conformance(&["--sede", "1"]).status.code(), Some(2));
    assert_eq!(conformance(&["memory", "--allow-missing", "rediss"]).status.code(), Some(2));
}

#[test]
fn one_case_is_run_and_written_with_what_was_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let case = "kv::versions_grow_with_each_write";
    let out = folder.path().join("new").display().to_string();
    let args = ["memory", "--allow-missing", "postgres", "--suite", case, "--seed", "5", "--out", &out];
    let output = conformance(&args);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.starts_with("1 cases, seed 5\n"), "{said}");
    assert!(said.contains("kv      1 passed   1 not run"), "{said}");
    assert!(said.ends_with("\n1 passed, 0 failed\n"), "{said}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("new/conformance.json")).unwrap()).unwrap();
    assert_eq!(report["cases"][0]["status"], "passed");
    assert_eq!(report["cases"][1]["status"], "not_run");
    let markdown = std::fs::read_to_string(folder.path().join("new/conformance.md")).unwrap();
    assert!(markdown.contains("| `versions_grow_with_each_write` |"), "{markdown}");
    assert!(markdown.contains("| passed | not run |"), "{markdown}");
}

#[test]
fn a_certificate_is_about_the_crash_suite() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let path = folder.path().join("certificates/memory");
    let certificate = ["--certificate", path.to_str().unwrap(), "--out", &out];
    let refused = conformance(
        &[&["memory", "--suite", "kv::versions_grow_with_each_write"], &certificate[..]].concat(),
    );
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("a certificate is about the suite `crash`"),
        "{}",
        text(&refused.stderr)
    );
    let case = "crash::every_write_point_is_reached";
    let other = "handover::a_persistent_flow_goes_on_elsewhere";
    let suites = ["memory", "--suite", case, "--suite", other, "--seed", "5"];
    let output = conformance(&[&suites[..], &certificate[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let points = botmesh_core::journal::WritePoint::ALL.len();
    let covered = format!("{points} of {points} write points)");
    assert!(text(&output.stdout).contains(&covered), "{}", text(&output.stdout));
    let markdown = std::fs::read_to_string(path.with_extension("md")).unwrap();
    assert!(markdown.contains("seed 5, rounds 1") && markdown.contains("## memory ("), "{markdown}");
    for shown in ["`crash` and `handover`", &*format!("| `{case}` |"), &*format!("| `{other}` |")] {
        assert!(markdown.contains(shown), "{shown} is not in {markdown}");
    }
    let json = std::fs::read(path.with_extension("json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["suites"], serde_json::json!(["crash", "handover"]));
    assert_eq!(json["backends"][0]["passed"], 2);
    let zero = conformance(&["memory", "--suite", case, "--rounds", "0"]);
    assert_eq!(zero.status.code(), Some(2));
}

#[test]
fn the_list_and_the_help_run_nothing() {
    let list = text(&conformance(&["--list"]).stdout);
    assert!(list.contains("  kv::absent_means_no_entry\n"), "{list}");
    assert!(list.contains("  memory"), "{list}");
    let help = conformance(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("--allow-missing <BACKEND>"));
}
