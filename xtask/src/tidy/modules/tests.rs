use super::*;
use crate::tidy::tests::{places, tree};

fn lines(rule: fn(&Tree) -> Vec<Finding>, path: &str, source: &str) -> Vec<usize> {
    rule(&tree(&[(path, source)])).iter().map(|finding| finding.line).collect()
}

#[test]
fn core_does_not_reach_out() {
    let inside = |source| lines(core_is_pure, "crates/core/src/inbox.rs", source);
    for source in [
        "use std::fs;",
        "use std::{fs::File, path::Path};",
        "use std::{path::Path, net};",
        "let x = std::fs::read(p);",
        "let x = ::std::net::TcpStream::connect(a);",
        "tokio::spawn(f);",
        "use tokio::{spawn as go};",
        "tokio::task::spawn(f);",
        "use std::thread;",
        "let t = SystemTime::now();",
        "let t = std::time::Instant::now();",
        "getrandom::fill(&mut b);",
        "use std::fs as files;",
    ] {
        assert_eq!(inside(source), [1], "{source}");
    }
    for source in
        ["// std::fs", "/// like [`std::fs`]", "let a = \"std::fs\";", "use crate::fs;", "my::std_fs::x();"]
    {
        assert_eq!(inside(source), [0; 0], "{source}");
    }
    assert_eq!(inside("#[cfg(test)]\nmod tests {\n use std::fs;\n}\nuse std::net;\n"), [5]);
}

#[test]
fn core_asks_the_world_in_two_files_only() {
    let clock = "let t = SystemTime::now();";
    for (path, expected) in [
        ("crates/core/src/time.rs", 0),
        ("crates/core/src/time/system.rs", 0),
        ("crates/core/src/entropy.rs", 0),
        ("crates/core/src/timers.rs", 1),
        ("crates/core/src/inbox/time.rs", 1),
        ("crates/core/src/inbox/tests.rs", 0),
        ("crates/core/tests/it/main.rs", 0),
        ("crates/botmesh/src/lib.rs", 0),
    ] {
        assert_eq!(lines(core_is_pure, path, clock).len(), expected, "{path}");
    }
    assert_eq!(lines(core_is_pure, "crates/core/src/time.rs", "use std::fs;"), [1]);
}

#[test]
fn backends_know_only_core() {
    let source = "use botmesh_core::Store;\nuse botmesh::Bot;\nfn f(b: botmesh::Bot) {}\n//! botmesh::Bot\n";
    for (path, expected) in [
        ("crates/sqlite-store/src/lib.rs", 2),
        ("crates/sqlite-store/tests/it/main.rs", 2),
        ("crates/terminal/src/lib.rs", 2),
        ("crates/testing/src/lib.rs", 0),
        ("crates/botmesh/examples/a.rs", 0),
    ] {
        assert_eq!(lines(backends_do_not_name_the_runtime, path, source).len(), expected, "{path}");
    }
}

#[test]
fn the_runtime_flows_one_way() {
    for (path, source, expected) in [
        ("egress/send.rs", "use crate::dispatch::Route;", 1),
        ("egress/send.rs", "use crate::{flow, turns};", 1),
        ("egress/send.rs", "super::super::flow::go();", 1),
        ("egress/mod.rs", "use super::flow;", 1),
        ("egress/mod.rs", "use self::flow;", 0),
        ("egress.rs", "use super::{dispatch, turns};", 1),
        ("egress/send.rs", "use super::flow;", 0),
        ("egress/send.rs", "use crate::turns::Turn;", 0),
        ("egress/tests.rs", "use crate::flow;", 0),
        ("flow/run.rs", "crate::intake::admit();", 1),
        ("flow/run.rs", "crate::sweeper::wake();", 1),
        ("flow/run.rs", "crate::egress::send();", 0),
        ("flowers.rs", "crate::sweeper::wake();", 0),
        ("intake/mod.rs", "use crate::dispatch;", 1),
        ("intake/mod.rs", "use crate::{turns, egress::{self, Egress}};", 2),
        ("sweeper/mod.rs", "use crate::{intake, egress};", 0),
    ] {
        let path = format!("crates/botmesh/src/{path}");
        assert_eq!(lines(runtime_flows_one_way, &path, source).len(), expected, "{path}: {source}");
    }
}

#[test]
fn the_line_is_that_of_the_name() {
    let source = "use std::{\n    path::Path,\n    fs,\n};\n";
    let found = core_is_pure(&tree(&[("crates/core/src/a.rs", source)]));
    assert_eq!(places(&found), ["crates/core/src/a.rs:3"]);
}

#[test]
fn odd_text_ends() {
    for source in [
        "use",
        "use a::{",
        "use a::{;",
        "use {a, b::*};",
        "use $x::{$y};",
        "fn f() -> impl A + use<'_> {}",
        "a::",
    ] {
        assert_eq!(lines(core_is_pure, "crates/core/src/a.rs", source), [0; 0], "{source}");
    }
}
