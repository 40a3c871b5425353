//! The pinned cargo-deny: the one on the machine when its version is right, else one installed beside the build.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::Invocation;
use crate::workspace::Workspace;

const VERSION: &str = "0.20.2";

pub(crate) fn check() -> Invocation {
    Invocation::program("cargo-deny", ["check", "bans", "licenses", "sources"])
}

/// Runs the check with the pinned version, which it installs first when the machine lacks it.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    check().with_program(&binary(workspace)?).run(&workspace.root)
}

fn binary(workspace: &Workspace) -> Result<PathBuf, String> {
    let root = workspace.target.join("xtask-tools");
    let own = root.join("bin").join("cargo-deny");
    let candidates = [own.clone(), PathBuf::from("cargo-deny")];
    if let Some(found) = candidates.into_iter().find(|path| is_pinned(path)) {
        return Ok(found);
    }
    println!(
        "cargo-deny {VERSION} is not here: installing it under target/xtask-tools, once, in about 2 minutes"
    );
    let install = Invocation::cargo(["install", "cargo-deny", "--version", VERSION, "--locked", "--root"]);
    install.with_arg(&root).run(&workspace.root)?;
    Ok(own)
}

fn is_pinned(path: &Path) -> bool {
    let output = Command::new(path).arg("--version").output();
    output.is_ok_and(|output| version_in(&String::from_utf8_lossy(&output.stdout)) == Some(VERSION))
}

fn version_in(text: &str) -> Option<&str> {
    text.trim().strip_prefix("cargo-deny ")
}

#[cfg(test)]
mod tests;
