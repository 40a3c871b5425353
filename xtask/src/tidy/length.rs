//! Nothing so long that it cannot be read at once.

use super::scan::Code;
use super::{Finding, Tree};

const FILE: usize = 600;
const FUNCTION: usize = 70;
const TEST_FUNCTION: usize = 120;

pub(super) fn files(tree: &Tree) -> Vec<Finding> {
    let too_long = |lines: usize| {
        let advice = format!("{lines} lines, more than {FILE}: split the file by what its parts do");
        (lines > FILE).then_some(advice)
    };
    let finding =
        |file: &super::File| Some(Finding::new(&file.path, FILE + 1, too_long(file.text.lines().count())?));
    tree.rust().filter_map(finding).collect()
}

pub(super) fn functions(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let code = Code::new(&file.text);
        for function in code.functions() {
            let first = code.line(function.range.start);
            let lines = code.line(function.range.end) - first + 1;
            let test = file.is_test() || code.is_test(function.range.start);
            let limit = if test { TEST_FUNCTION } else { FUNCTION };
            if lines > limit {
                let name = &function.name;
                let advice = format!(
                    "fn {name} has {lines} lines, more than {limit}: give its parts names of their own"
                );
                found.push(Finding::new(&file.path, first, advice));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
