use super::*;
use crate::tidy::tests::{places, tree};

#[test]
fn allow_is_found_in_code_only() {
    let source =
        "#![allow(dead_code)]\n// #[allow(x)]\nlet a = \"#[allow(x)]\";\n#[allow(x)]\n#[expect(x)]\n";
    assert_eq!(places(&no_allow_attributes(&tree(&[("a.rs", source)]))), ["a.rs:4", "a.rs:1"]);
    assert_eq!(no_allow_attributes(&tree(&[("a.md", source)])), []);
}

#[test]
fn paths_of_a_machine_are_found_in_any_text() {
    for (text, expected) in [
        ("see @work@main", 1),
        ("see `@root@.cargo`", 1),
        ("url file:@@@home@me", 1),
        ("path = \"@home@me\"", 1),
        ("docs@home@index.md", 0),
        ("$HOME@work@x", 0),
        ("~@work@x", 0),
        ("${DIR}@root@x", 0),
        ("@homework@x", 0),
        ("homework", 0),
    ] {
        let text = text.replace('@', "/");
        let found = no_machine_paths(&tree(&[("a.md", &text)]));
        assert_eq!(found.len(), expected, "{text}");
    }
}
