//! What a module may name: the arrows of the drawing, and the doors that stay shut.

mod paths;

use self::paths::{NamedPath, named_paths};
use super::crates::Role;
use super::scan::Code;
use super::{File, Finding, Tree};

/// Never in core, whatever the file.
const INPUT_OUTPUT: &[&[&str]] = &[&["std", "fs"], &["std", "net"], &["tokio", "fs"], &["tokio", "net"]];

/// In core only where the real clock and the real entropy are.
const WORLD: &[&[&str]] = &[
    &["std", "thread"],
    &["tokio", "spawn"],
    &["tokio", "task", "spawn"],
    &["SystemTime", "now"],
    &["Instant", "now"],
    &["getrandom"],
];

/// Folders of the runtime, and the folders that they never name.
const ONE_WAY: &[(&str, &[&str])] = &[
    ("egress", &["dispatch", "flow"]),
    ("flow", &["intake", "sweeper"]),
    ("intake", &["dispatch", "egress"]),
    ("scheduler", &["flow", "intake", "sweeper", "turns"]),
];

pub(super) fn core_is_pure(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in in_folder(tree, "crates/core/src/") {
        let world = if is_the_world(&file.path) { &[] } else { WORLD };
        for path in production_paths(file) {
            if let Some(banned) = INPUT_OUTPUT.iter().chain(world).find(|banned| path.contains(banned)) {
                let banned = banned.join("::");
                let advice =
                    format!("core has no {banned}: take it as an argument, or move this to who owns it");
                found.push(Finding::new(&file.path, path.line, advice));
            }
        }
    }
    found
}

fn is_the_world(path: &str) -> bool {
    let inside = path.trim_start_matches("crates/core/src/");
    ["time", "entropy"].iter().any(|name| inside.strip_prefix(name).is_some_and(is_module))
}

pub(super) fn backends_do_not_name_the_runtime(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in in_folder(tree, "crates/") {
        let folder = file.path.split('/').nth(1).unwrap_or("");
        if !matches!(Role::of(folder), Some(Role::Store | Role::Channel | Role::Webhook)) {
            continue;
        }
        for path in named_paths(&Code::new(&file.text), &[]) {
            if path.starts_with(&["botmesh"]) {
                let advice = format!(
                    "{folder} knows only botmesh-core: name botmesh_core, or move this to the runtime"
                );
                found.push(Finding::new(&file.path, path.line, advice));
            }
        }
    }
    found
}

pub(super) fn runtime_flows_one_way(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (folder, never) in ONE_WAY {
        let root = format!("crates/botmesh/src/{folder}");
        for file in in_folder(tree, &root).filter(|file| is_module(&file.path[root.len()..])) {
            for path in production_paths(file) {
                if let Some(other) = never.iter().find(|other| path.starts_with(&["crate", other])) {
                    let advice =
                        format!("{folder} never names {other}: pass the value on, nothing flows back");
                    found.push(Finding::new(&file.path, path.line, advice));
                }
            }
        }
    }
    found
}

fn is_module(after_name: &str) -> bool {
    after_name == ".rs" || after_name.starts_with('/')
}

fn in_folder<'a>(tree: &'a Tree, folder: &str) -> impl Iterator<Item = &'a File> {
    tree.rust().filter(move |file| file.path.starts_with(folder))
}

/// The paths that a file names outside its tests.
fn production_paths(file: &File) -> Vec<NamedPath> {
    if file.is_test() {
        return Vec::new();
    }
    let code = Code::new(&file.text);
    let mut paths = named_paths(&code, &module_of(&file.path));
    paths.retain(|path| !code.is_test(path.at));
    paths
}

/// `crates/botmesh/src/egress/send.rs` is the module `egress::send`.
fn module_of(path: &str) -> Vec<&str> {
    let inside = path.split_once("/src/").map_or(path, |(_, inside)| inside);
    let mut module: Vec<_> = inside.trim_end_matches(".rs").split('/').collect();
    if matches!(module.last(), Some(&("lib" | "main" | "mod"))) {
        module.pop();
    }
    module
}

#[cfg(test)]
mod tests;
