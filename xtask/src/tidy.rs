//! `cargo xtask tidy`: the rules of the architecture that no compiler checks.

mod crates;
mod hygiene;
mod length;
mod manifest;
mod modules;
mod scan;

use std::fmt;
use std::fs;

use crate::shell::Invocation;
use crate::workspace::Workspace;

/// Check crate and module edges, manifests, lengths and leftovers, and print each offending line
///
/// It reads every file that git tracks or would track.
///
///   crate edges   who may depend on whom; internal names, paths and versions agree
///   module edges  what core, the stores, the channels and the folders of the runtime may name
///   manifests     package name, description, readme, changelog, lints of the workspace
///   lengths       600 lines a file, 70 a function (120 in tests)
///   leftovers     `allow` attributes, paths of somebody's machine
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {}

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: &[Rule] = &[
    crates::edges,
    crates::manifests,
    crates::internal_dependencies,
    crates::workspace_versions,
    length::files,
    length::functions,
    modules::core_is_pure,
    modules::backends_do_not_name_the_runtime,
    modules::runtime_flows_one_way,
    hygiene::no_allow_attributes,
    hygiene::no_machine_paths,
];

/// A line that breaks a rule, and what to do about it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    file: String,
    line: usize,
    advice: String,
}

impl Finding {
    fn new(file: &str, line: usize, advice: impl Into<String>) -> Self {
        Self { file: file.into(), line, advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.advice)
    }
}

/// The text files of the checkout, by their path from its root.
struct Tree {
    files: Vec<File>,
}

struct File {
    path: String,
    text: String,
}

impl Tree {
    fn load(workspace: &Workspace) -> Result<Self, String> {
        let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let paths = Invocation::program("git", list).output(&workspace.root)?;
        let mut files = Vec::new();
        for path in paths.split_terminator('\0') {
            if let Ok(text) = fs::read_to_string(workspace.root.join(path)) {
                files.push(File { path: path.into(), text });
            }
        }
        Ok(Self { files })
    }

    fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    fn contains(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }
}

impl File {
    /// Whether the whole file is test code.
    fn is_test(&self) -> bool {
        let (folders, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        folders.split('/').any(|folder| folder == "tests")
            || name == "tests.rs"
            || name.ends_with("_tests.rs")
    }
}

/// Prints each finding and fails if there is one.
pub(crate) fn check(workspace: &Workspace) -> Result<(), String> {
    let tree = Tree::load(workspace)?;
    let findings = findings(&tree);
    if findings.is_empty() {
        println!("tidy: {} files, {} rules, nothing found", tree.files.len(), RULES.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    Err(format!("tidy found {} to mend, listed above", findings.len()))
}

fn findings(tree: &Tree) -> Vec<Finding> {
    let mut all: Vec<_> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests;
