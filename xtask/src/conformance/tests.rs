use std::ffi::OsString;

use super::{may_miss, needs};

fn args(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

#[test]
fn servers_are_started_for_runs_that_use_them() {
    for line in ["", "redis", "--suite kv", "sqlite redis", "file --allow-missing redis"] {
        assert!(needs(&args(line), "redis"), "{line}");
        assert!(!needs(&args(line), "redis-cluster"), "{line}");
    }
    for line in ["sqlite", "memory file --suite kv", "--list", "--help", "redis-cluster"] {
        assert!(!needs(&args(line), "redis"), "{line}");
    }
    assert!(needs(&args("redis-cluster --suite kv"), "redis-cluster"));
}

#[test]
fn a_missing_server_is_an_error_unless_it_is_allowed() {
    for line in ["--allow-missing redis", "file --allow-missing=redis"] {
        assert!(may_miss(&args(line), "redis"), "{line}");
    }
    for line in ["", "redis", "redis --allow-missing postgres", "--allow-missing redis-cluster"] {
        assert!(!may_miss(&args(line), "redis"), "{line}");
    }
}
