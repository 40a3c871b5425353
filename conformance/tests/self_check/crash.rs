use std::sync::Arc;

use botmesh_conformance::{Report, Runner};

use crate::journals::{Bug, toys};

const CASES: [&str; 4] = [
    "crash::a_lost_answer_under_resend",
    "crash::a_crash_after_a_write_under_skip",
    "crash::a_crash_amid_a_commit_with_tokens",
    "crash::a_process_killed_in_a_handler_under_skip",
];

async fn report(bug: Bug) -> Report {
    let mut runner = Runner::new(7).with_backend(Arc::new(toys(bug)));
    for case in CASES {
        runner = runner.with_suite(case).unwrap();
    }
    runner.run(|_| ()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_without_a_bug_gets_its_certificate() {
    let report = report(Bug::None).await;
    assert_eq!(report.failures().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    let json = report.certificate().unwrap().json().unwrap();
    let certificate: serde_json::Value = serde_json::from_str(&json).unwrap();
    let toy = &certificate["backends"][0];
    assert_eq!((&toy["name"], &toy["result"]), (&"toy".into(), &"passed".into()), "{json}");
    assert_eq!(toy["not_shown"], 1, "no program was given that could be killed: {json}");
    let points = certificate["write_points"].as_array().unwrap().len();
    assert_eq!(toy["write_points_covered"], points, "{json}");
    assert!(toy["runs"].as_u64().unwrap() >= 3 * points as u64 - 3, "{json}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_forgets_or_repeats_is_caught() {
    for bug in [Bug::SentIsForgotten, Bug::SendsApplyTwice] {
        let report = report(bug).await;
        assert!(report.failed() > 0, "{bug:?} is not caught");
        let certificate = report.certificate().unwrap().markdown();
        assert!(certificate.contains("## toy (version not told): failed"), "{certificate}");
    }
}
