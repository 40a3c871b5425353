use super::*;
use crate::tidy::tests::{places, tree};

fn function(lines: usize) -> String {
    format!("fn f() {{\n{}}}\n", "x();\n".repeat(lines - 2))
}

#[test]
fn a_file_may_have_600_lines() {
    assert_eq!(files(&tree(&[("a.rs", &"\n".repeat(600))])), []);
    assert_eq!(places(&files(&tree(&[("a.rs", &"\n".repeat(601))]))), ["a.rs:601"]);
    assert_eq!(places(&files(&tree(&[("a/tests/b.rs", &"\n".repeat(601))]))), ["a/tests/b.rs:601"]);
    assert_eq!(files(&tree(&[("a.md", &"\n".repeat(601))])), []);
}

#[test]
fn a_function_may_have_70_lines() {
    assert_eq!(functions(&tree(&[("a.rs", &function(70))])), []);
    assert_eq!(places(&functions(&tree(&[("a.rs", &format!("\n{}", function(71)))]))), ["a.rs:2"]);
}

#[test]
fn a_test_may_have_120_lines() {
    let inline = |lines| format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(lines));
    assert_eq!(functions(&tree(&[("a.rs", &inline(120)), ("tests/b.rs", &function(120))])), []);
    let found = functions(&tree(&[("a.rs", &inline(121)), ("tests/b.rs", &function(121))]));
    assert_eq!(places(&found), ["a.rs:3", "tests/b.rs:1"]);
}
