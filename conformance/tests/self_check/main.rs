//! The suites catch backends that break one rule: a suite that passes everything proves nothing.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod crash;
mod journals;
mod stores;
mod turns;

use std::sync::Arc;

use botmesh_conformance::{Backend, Runner};

/// The cases of `suite` that fail.
async fn failures(backend: impl Backend, suite: &str) -> Vec<&'static str> {
    let runner = Runner::new(7).with_backend(Arc::new(backend)).with_suite(suite).unwrap();
    let report = runner.run(|_| ()).await.unwrap();
    assert!(report.cases().len() > 3, "the suite {suite} has almost no cases");
    report.failures().map(|case| case.case).collect()
}
