use std::ffi::OsString;

use super::{may_miss_redis, needs_redis};

fn args(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

#[test]
fn a_server_is_started_for_runs_that_use_it() {
    for line in ["", "redis", "--suite kv", "sqlite redis", "file --allow-missing redis"] {
        assert!(needs_redis(&args(line)), "{line}");
    }
    for line in ["sqlite", "memory file --suite kv", "--list", "--help"] {
        assert!(!needs_redis(&args(line)), "{line}");
    }
}

#[test]
fn a_missing_server_is_an_error_unless_it_is_allowed() {
    for line in ["--allow-missing redis", "file --allow-missing=redis"] {
        assert!(may_miss_redis(&args(line)), "{line}");
    }
    for line in ["", "redis", "redis --allow-missing postgres"] {
        assert!(!may_miss_redis(&args(line)), "{line}");
    }
}
