use super::*;
use crate::tidy::tests::{places, tree};

fn edge(folder: &str, dependency: &str) -> Vec<Finding> {
    let path = format!("{folder}/Cargo.toml");
    edges(&tree(&[(&path, dependency)]))
}

#[test]
fn edges_follow_the_table() {
    let table = [
        ("core", ""),
        ("append-log", ""),
        ("botmesh", "core append-log"),
        ("events", "core append-log"),
        ("sqlite-store", "core"),
        ("terminal", "core"),
        ("testing", "core botmesh"),
        ("conformance", "core botmesh testing"),
        ("examples", "core append-log botmesh events sqlite-store terminal testing conformance examples"),
        ("nemesis", "core botmesh sqlite-store testing test-servers"),
        ("test-servers", ""),
        ("xtask", "test-servers"),
    ];
    for (from, allowed) in table {
        let folder = if matches!(from, "conformance" | "examples" | "nemesis" | "test-servers" | "xtask") {
            from.into()
        } else {
            format!("crates/{from}")
        };
        for (to, _) in table.iter().filter(|(to, _)| !matches!(*to, "xtask")) {
            let package = expected_name(to);
            let found = edge(&folder, &format!("[dependencies]\n{package}.workspace = true\n"));
            let expected = allowed.split(' ').any(|name| name == *to);
            assert_eq!(found.is_empty(), expected, "{from} -> {to}: {found:?}");
        }
    }
}

#[test]
fn tests_are_free_but_backends_stay_apart() {
    for (from, to, allowed) in [
        ("crates/botmesh", "botmesh-sqlite-store", true),
        ("crates/core", "botmesh-testing", true),
        ("crates/sqlite-store", "botmesh-conformance", true),
        ("crates/redis-store", "botmesh-test-servers", true),
        ("crates/sqlite-store", "botmesh", false),
        ("crates/sqlite-store", "botmesh-redis-store", false),
        ("crates/sqlite-store", "botmesh-terminal", false),
        ("crates/terminal", "botmesh", false),
        ("crates/terminal", "botmesh-sqlite-store", false),
    ] {
        let found = edge(from, &format!("[dev-dependencies]\n{to} = {{ path = \"x\" }}\n"));
        assert_eq!(found.is_empty(), allowed, "{from} -> {to}: {found:?}");
    }
}

#[test]
fn an_edge_is_found_wherever_it_is_written() {
    for (manifest, line) in [
        ("[dependencies]\nbotmesh = { workspace = true }", 2),
        ("[dependencies.botmesh]\nworkspace = true", 1),
        ("[build-dependencies]\n\nbotmesh.workspace = true", 3),
        ("[target.'cfg(unix)'.dependencies]\nbotmesh.workspace = true", 2),
        ("[dependencies]\nother = { package = \"botmesh\", version = \"1\" }", 2),
    ] {
        let found = edge("crates/core", manifest);
        assert_eq!(places(&found), [format!("crates/core/Cargo.toml:{line}")], "{manifest}");
    }
    assert_eq!(edge("crates/core", "[dependencies]\nserde.workspace = true"), []);
}

#[test]
fn conformance_has_backends_behind_features_only() {
    let optional = "[dependencies]\nbotmesh-sqlite-store = { workspace = true, optional = true }";
    assert_eq!(edge("conformance", optional), []);
    let always = edge("conformance", "[dependencies]\nbotmesh-sqlite-store = { workspace = true }");
    assert!(always[0].advice.ends_with("make it optional, behind a feature"), "{always:?}");
}

#[test]
fn a_crate_outside_the_table_is_found() {
    assert_eq!(places(&edge("crates/surprise", "")), ["crates/surprise/Cargo.toml:1"]);
    let unknown = "[dependencies]\nbotmesh-surprise.workspace = true";
    assert_eq!(places(&edge("crates/botmesh", unknown)), ["crates/botmesh/Cargo.toml:2"]);
}

const GOOD: &str = r#"[package]
name = "botmesh-core"
description = "d"
readme = "README.md"
[lints]
workspace = true
"#;

fn manifest_findings(text: &str, others: &[&str]) -> Vec<Finding> {
    let mut files = vec![("crates/core/Cargo.toml", text)];
    files.extend(others.iter().map(|path| (*path, "")));
    manifests(&tree(&files))
}

#[test]
fn a_manifest_says_all_it_must() {
    let docs = ["crates/core/README.md", "crates/core/CHANGELOG.md"];
    assert_eq!(manifest_findings(GOOD, &docs), []);
    for (from, to, line, part) in [
        ("botmesh-core", "core", 2, "is called botmesh-core"),
        ("description = \"d\"", "", 1, "add a description"),
        ("description = \"d\"", "description = \"\"", 3, "add a description"),
        ("readme = \"README.md\"", "", 1, "add readme"),
        ("workspace = true", "workspace = false", 6, "add [lints]"),
        ("[lints]\nworkspace = true", "", 1, "add [lints]"),
        ("[lints]", "[lints", 5, "cannot be read"),
    ] {
        let found = manifest_findings(&GOOD.replace(from, to), &docs);
        assert_eq!(places(&found), [format!("crates/core/Cargo.toml:{line}")], "{from} -> {to}: {found:?}");
        assert!(found[0].advice.contains(part), "{found:?}");
    }
    for missing in docs {
        let rest: Vec<_> = docs.into_iter().filter(|path| *path != missing).collect();
        let found = manifest_findings(GOOD, &rest);
        let advice = format!("crates/core has no {}: add one", missing.rsplit_once('/').unwrap().1);
        assert_eq!(found, [Finding::new("crates/core/Cargo.toml", 1, advice)]);
    }
}

#[test]
fn internal_dependencies_come_from_the_workspace() {
    for (line, good) in [
        ("[dependencies]\nbotmesh-core.workspace = true", true),
        ("[dependencies]\nbotmesh-core = { workspace = true, features = [\"x\"] }", true),
        ("[dependencies]\nbotmesh-core = \"0.1\"", false),
        ("[dependencies]\nbotmesh-core = { path = \"../core\" }", false),
        ("[dev-dependencies]\nbotmesh-core = { path = \"../core\" }", true),
        ("[dev-dependencies]\nbotmesh-core = { path = \"../core\", version = \"0.1.0\" }", false),
        ("[dev-dependencies]\nbotmesh-core.workspace = true", true),
        ("[dependencies]\nserde = \"1\"", true),
    ] {
        let found = internal_dependencies(&tree(&[("crates/botmesh/Cargo.toml", line)]));
        assert_eq!(found.is_empty(), good, "{line}: {found:?}");
    }
}

#[test]
fn the_workspace_repeats_path_and_version_of_its_crates() {
    let core = "[package]\nname = \"botmesh-core\"\nversion = \"0.2.0\"\n";
    for (line, part) in [
        ("botmesh-core = { path = \"crates/core\", version = \"0.2.0\" }", None),
        ("botmesh-core = { path = \"crates/core\", version = \"0.1.0\" }", Some("at version 0.2.0")),
        ("botmesh-core = { path = \"crates/cor\", version = \"0.2.0\" }", Some("is crates/core")),
        ("botmesh-gone = { path = \"crates/gone\", version = \"0.2.0\" }", Some("no crate")),
        ("serde = \"1\"", None),
    ] {
        let root = format!("[workspace.dependencies]\n{line}\n");
        let found = workspace_versions(&tree(&[("Cargo.toml", &root), ("crates/core/Cargo.toml", core)]));
        assert_eq!(found.len(), usize::from(part.is_some()), "{line}: {found:?}");
        assert!(
            found.iter().all(|f| f.line == 2 && f.advice.contains(part.unwrap_or(""))),
            "{line}: {found:?}"
        );
    }
}
