//! Leftovers that a review should not have to look for.

use super::scan::{Code, line_of};
use super::{Finding, Tree};

pub(super) fn no_allow_attributes(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let code = Code::new(&file.text);
        for pattern in ["#[allow(", "#![allow("] {
            for (at, _) in code.text().match_indices(pattern) {
                let advice =
                    "use #[expect(LINT, reason = \"...\")]: it says why, and fails when no longer needed";
                found.push(Finding::new(&file.path, code.line(at), advice));
            }
        }
    }
    found
}

pub(super) fn no_machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        for top in ["work", "root", "home"] {
            let path = format!("/{top}/");
            for (at, _) in file.text.match_indices(&path).filter(|(at, _)| starts_path(&file.text[..*at])) {
                let advice =
                    format!("{path} is a folder of somebody's machine: use a path relative to the checkout");
                found.push(Finding::new(&file.path, line_of(&file.text, at), advice));
            }
        }
    }
    found
}

/// Whether a slash after this text begins a path, instead of going on with one.
fn starts_path(before: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || "._-*~}>)$".contains(c);
    !before.ends_with(goes_on)
}

#[cfg(test)]
mod tests;
