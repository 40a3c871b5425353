use super::*;

pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
    let file = |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
    Tree { files: files.iter().map(file).collect() }
}

/// The findings as `file:line`, without the advice.
pub(super) fn places(found: &[Finding]) -> Vec<String> {
    found.iter().map(|finding| format!("{}:{}", finding.file, finding.line)).collect()
}

#[test]
fn every_rule_is_asked() {
    let long_file = "\n".repeat(601);
    let long_function = format!("fn f() {{\n{}}}\n", "\n".repeat(70));
    let tree = tree(&[
        (
            "Cargo.toml",
            "[workspace.dependencies]\nbotmesh-gone = { path = \"crates/gone\", version = \"1.0.0\" }\n",
        ),
        (
            "crates/core/Cargo.toml",
            "[package]\nname = \"botmesh-core\"\n[dependencies]\nbotmesh.workspace = true\n",
        ),
        ("crates/core/src/lib.rs", "use std::fs;\n"),
        ("crates/terminal/Cargo.toml", "[dev-dependencies]\nbotmesh-core = \"0.1\"\n"),
        ("crates/terminal/src/lib.rs", "use botmesh::Bot;\n"),
        ("crates/botmesh/src/egress.rs", "use crate::flow;\n"),
        ("long.rs", &long_file),
        ("function.rs", &long_function),
        ("allow.rs", "#[allow(dead_code)]\n"),
        ("note.md", &format!("see /{}/me\n", "home")),
    ]);
    let found = findings(&tree).iter().map(Finding::to_string).collect::<Vec<_>>().join("\n");
    for part in [
        "crates/core/Cargo.toml:4: crates/core may not depend on botmesh",
        "crates/core/Cargo.toml:1: add [lints] workspace = true",
        "crates/terminal/Cargo.toml:2: botmesh-core is ours",
        "Cargo.toml:2: no crate of the workspace is called botmesh-gone",
        "long.rs:601: 601 lines",
        "function.rs:1: fn f has 72 lines",
        "crates/core/src/lib.rs:1: core has no std::fs",
        "crates/terminal/src/lib.rs:1: terminal knows only botmesh-core",
        "crates/botmesh/src/egress.rs:1: egress never names flow",
        "allow.rs:1: use #[expect(",
        "note.md:1: ",
    ] {
        assert!(found.contains(part), "no rule found `{part}` in\n{found}");
    }
}

#[test]
fn a_clean_tree_has_no_findings() {
    let manifest = "[package]\nname = \"botmesh-core\"\ndescription = \"d\"\nreadme = \"README.md\"\n\
                    [lints]\nworkspace = true\n";
    let tree = tree(&[
        ("crates/core/Cargo.toml", manifest),
        ("crates/core/README.md", ""),
        ("crates/core/CHANGELOG.md", ""),
        ("crates/core/src/lib.rs", "//! No `std::fs` here.\nfn f() {}\n"),
    ]);
    assert_eq!(findings(&tree), []);
}

#[test]
fn test_files_are_known_by_their_path() {
    for (path, expected) in [
        ("crates/core/src/inbox.rs", false),
        ("crates/core/src/inbox/tests.rs", true),
        ("crates/core/src/inbox_tests.rs", true),
        ("crates/core/tests/it/main.rs", true),
        ("crates/testing/src/lib.rs", false),
        ("tests.rs", true),
    ] {
        assert_eq!(File { path: path.into(), text: String::new() }.is_test(), expected, "{path}");
    }
}
