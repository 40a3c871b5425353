use super::*;

fn shape(source: &str) -> Vec<(String, usize, usize)> {
    let code = Code::new(source);
    let lines = |f: Function| (f.name, code.line(f.range.start), code.line(f.range.end));
    code.functions().into_iter().map(lines).collect()
}

fn one(source: &str, lines: usize) {
    assert_eq!(shape(source), [("f".into(), 1, lines)], "{source}");
}

#[test]
fn literals_and_comments_are_blanked_and_lines_kept() {
    for (source, left) in [
        ("a // }\nb", "a b"),
        ("word// }", "word"),
        ("a /* { /* } */ { */ b", "a b"),
        ("a /* { \n */b", "a b"),
        (r#"a "}\"}" b"#, "a b"),
        (r##"a r#"}"}"# b"##, "a b"),
        (r#"a br"}\" b"#, "a b"),
        (r#"a b"}" c"}" d"#, "a d"),
        ("a '}' b", "a b"),
        (r"a '\'' b", "a b"),
        (r"a '\\' b", "a b"),
        ("a b'}' c", "a c"),
        ("&'a str, 'b'", "&'a str,"),
        ("x: &'static str = y", "x: &'static str = y"),
        ("r#type = rb", "r#type = rb"),
        ("é 'é' é", "é é"),
    ] {
        let text = blank(source);
        assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), left, "{source}");
        let lines = |text: &str| text.match_indices('\n').map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!((text.len(), lines(&text)), (source.len(), lines(source)), "{source}");
    }
}

#[test]
fn a_text_that_ends_in_the_middle_is_not_an_error() {
    for source in ["\"abc", "/* abc", "r#\"abc", "'", "'a", "b'", "fn", "fn f(", "#[cfg(test)]", "é'"] {
        assert!(Code::new(source).functions().is_empty(), "{source}");
    }
}

#[test]
fn a_function_ends_at_its_own_brace() {
    one("fn f() {\n  if a { b }\n}\n", 3);
    one("fn f() {\n  let a = \"}\";\n}\n", 3);
    one("fn f<'a>(x: &'a str) {\n  let a = '}';\n  // }\n}\n", 4);
    one("fn f() -> [u8; 4] {\n  r#\"} \"\n}\"#\n}\n", 4);
    one("fn f(\n  a: u8,\n)\nwhere\n  A: B,\n{\n}\n", 7);
}

#[test]
fn what_has_no_body_is_not_a_function() {
    assert!(shape("trait T { fn f(&self) -> [u8; 2]; }").is_empty());
    assert!(shape("type F = fn(u8) -> u8;").is_empty());
    assert!(shape("// fn f() {}\nlet x = \"fn g() {}\";").is_empty());
}

#[test]
fn nested_functions_are_found_too() {
    let names: Vec<_> =
        shape("fn f() {\n fn g() {\n }\n}\nimpl A {\n pub async fn h() {\n }\n}").into_iter().collect();
    assert_eq!(names, [("f".into(), 1, 4), ("g".into(), 2, 3), ("h".into(), 6, 7)]);
}

#[test]
fn test_items_are_those_under_cfg_test() {
    let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n\
                  #[cfg(test)]\nmod more;\nfn d() {}\n#[cfg(not(test))]\nfn e() {}\n\
                  #[cfg(all(test, unix))]\nfn g() {}\n#[cfg(feature = \"test\")]\nfn h() {}\n";
    let code = Code::new(source);
    let tests: Vec<_> =
        code.functions().into_iter().filter(|f| code.is_test(f.range.start)).map(|f| f.name).collect();
    assert_eq!(tests, ["b", "g"]);
}
