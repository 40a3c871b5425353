use super::{Formatted, Markup, Span, Style};
use crate::content::{Content, ContentBody, OutboundMedia};
use crate::provider::{TextLimit, TextUnit};

fn link(url: &str) -> Style {
    Style::Link { url: url.to_owned() }
}

fn pre(language: Option<&str>) -> Style {
    Style::Pre { language: language.map(str::to_owned) }
}

/// The text, and what of it is shown how.
fn shown(formatted: &Formatted) -> (&str, Vec<(&str, &Style)>) {
    let text = formatted.text();
    (text, formatted.spans().iter().map(|span| (&text[span.start..span.end], &span.style)).collect())
}

fn utf16(max: usize) -> Option<TextLimit> {
    Some(TextLimit { max, unit: TextUnit::Utf16 })
}

#[test]
fn markup_is_read() {
    use Style::{Bold, Code, Italic, Strikethrough};
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, Style)]);
    let cases: &[Case<'_>] = &[
        ("**a** b", "a b", &[("a", Bold)]),
        ("__a b__", "a b", &[("a b", Bold)]),
        ("*a* _b_", "a b", &[("a", Italic), ("b", Italic)]),
        ("***a***", "a", &[("a", Bold), ("a", Italic)]),
        ("**a *b***", "a b", &[("a b", Bold), ("b", Italic)]),
        ("*a **b***", "a b", &[("a b", Italic), ("b", Bold)]),
        ("~~a~~", "a", &[("a", Strikethrough)]),
        ("so**far**", "sofar", &[("far", Bold)]),
        ("`a*b*`", "a*b*", &[("a*b*", Code)]),
        ("`` ` ``", "`", &[("`", Code)]),
        ("[a](https://x.org/b_(c))", "a", &[("a", link("https://x.org/b_(c)"))]),
        ("[**a**](x)", "a", &[("a", link("x")), ("a", Bold)]),
        ("```rs\nlet a;\n\nlet b;\n```\nc", "let a;\n\nlet b;\nc", &[("let a;\n\nlet b;", pre(Some("rs")))]),
        ("```\na\n```", "a", &[("a", pre(None))]),
        ("- a\n* **b**\n  + c", "• a\n• b\n  • c", &[("b", Bold)]),
        (r"\*a\* \`b\`", "*a* `b`", &[]),
    ];
    for (source, text, spans) in cases {
        let read = Formatted::parse(source);
        let (read_text, read_spans) = shown(&read);
        let expected: Vec<(&str, &Style)> = spans.iter().map(|(text, style)| (*text, style)).collect();
        assert_eq!((read_text, read_spans), (*text, expected), "{source}");
    }
}

#[test]
fn what_is_no_markup_is_text() {
    for text in [
        "2 * 3 * 4",
        "2*3*4",
        "snake_case_name",
        "**",
        "****",
        "*",
        "a **b",
        "a* b*",
        "`a",
        "``a`",
        "` `",
        "[a]",
        "[a](",
        "[a](b c)",
        "[](x)",
        "[a]()",
        "a - b",
        "-a",
        "~a~",
        "**a\n\nb**",
        "```\n```",
        "```\na",
        "# a",
        "a\\b",
        "\\",
    ] {
        assert_eq!(Formatted::parse(text), Formatted::from(text));
    }
    assert_eq!(Formatted::parse("- *a\n- b*"), Formatted::from("• *a\n• b*"), "not over two items");
}

#[test]
fn a_long_line_of_marks_is_read_in_no_time() {
    for mark in [
        "*",
        "_ ",
        "**a ",
        "[",
        "](",
        "`",
        "``` ",
        "~~",
        "[a](",
        "\\",
        "```\n",
        "- *",
        "[x](y",
        "*a _b ~~c [",
        "` `` ",
    ] {
        let source = mark.repeat(20_000 / mark.len());
        let read = Formatted::parse(&source);
        assert!(read.text().len() <= 2 * source.len());
        let _ = (read.to_whatsapp(), read.to_plain(), read.utf16_spans().len());
    }
}

#[test]
fn spans_are_put_in_order() {
    use Style::{Bold, Code, Italic};
    let order = |spans: &[(usize, usize, Style)]| {
        let spans = spans.iter().map(|(start, end, style)| Span::new(*start..*end, style.clone()));
        let formatted = Formatted::new("0123456789é", spans);
        formatted
            .into_parts()
            .1
            .into_iter()
            .map(|Span { start, end, style }| (start, end, style))
            .collect::<Vec<_>>()
    };
    assert_eq!(order(&[(4, 6, Bold), (0, 4, Bold), (8, 5, Italic), (3, 3, Bold)]), [(0, 6, Bold)]);
    assert_eq!(order(&[(0, 99, Bold)]), [(0, 12, Bold)]);
    assert_eq!(order(&[(11, 12, Bold)]), [(10, 12, Bold)], "not within a character");
    assert_eq!(order(&[(0, 5, Bold), (3, 8, Italic)]), [(0, 5, Bold), (3, 5, Italic), (5, 8, Italic)]);
    assert_eq!(order(&[(0, 8, Bold), (2, 4, Code)]), [(0, 2, Bold), (2, 4, Code), (4, 8, Bold)]);
    assert_eq!(order(&[(0, 4, link("a")), (2, 6, link("b"))]), [(0, 4, link("a")), (4, 6, link("b"))]);
    assert_eq!(
        order(&[(0, 5, Bold), (3, 8, link("a"))]),
        [(0, 3, Bold), (3, 8, link("a")), (3, 5, Bold)],
        "a link is not cut"
    );
    assert_eq!(order(&[(0, 8, link("a")), (2, 4, Code)]), [(0, 8, link("a"))], "a link keeps its target");
}

#[test]
fn places_are_counted_as_telegram_does() {
    let text = Formatted::from("😀é ")
        + Formatted::styled("a😀", Style::Bold)
        + Formatted::styled("b", Style::Italic);
    let spans: Vec<_> = text.utf16_spans().iter().map(|span| (span.offset, span.length)).collect();
    assert_eq!(spans, [(4, 3), (7, 1)]);
}

#[test]
fn links_are_written_out_where_there_are_none() {
    let text = Formatted::parse(
        "**See [the page](https://x.org)** or [x.org](https://x.org), [ours](https://y.org).",
    );
    assert_eq!(text.to_plain(), "See the page (https://x.org) or x.org, ours (https://y.org).");
    assert_eq!(text.to_whatsapp(), "*See the page* (https://x.org) or x.org, ours (https://y.org).");
}

#[test]
fn whatsapp_shows_styles_by_marks() {
    for (source, written) in [
        ("**a** *b* ~~c~~", "*a* _b_ ~c~"),
        ("***a***", "*_a_*"),
        ("`a` b", "`a` b"),
        ("``a`b`` c", "```a`b``` c"),
        ("```rs\na\nb\n```", "```a\nb```"),
        ("**a\nb**", "*a*\n*b*"),
        ("pre**fix**", "prefix"),
        ("**a**, *b*!", "*a*, _b_!"),
        ("**a** 2 \\* 3", "*a* 2 * 3"),
        ("_x_ \\*a\\*", "_x_ ∗a∗"),
        ("**\\*a**", "*∗a*"),
        ("**x** snake_case_name \\_a", "*x* snake_case_name _a"),
        ("_x_ snake_case_name \\_a", "_x_ snake_case_name ＿a"),
        ("**x** https://x.org/\\_a\\_", "*x* https://x.org/_a_"),
        ("`x` \\`y", "`x` ‵y"),
    ] {
        assert_eq!(Formatted::parse(source).to_whatsapp(), written, "{source}");
    }
}

#[test]
fn user_input_is_no_markup() {
    for name in ["*Ana*", "[a](x)", "`", "\\", "\\*", "- a", "a\n- b", "```\na\n```", "**", "_ _"] {
        let read = Formatted::parse(&format!("Hi {}!", Formatted::escape(name)));
        assert_eq!((read.text(), read.spans()), (format!("Hi {name}!").as_str(), &[][..]));
        assert_eq!(Formatted::parse(&Formatted::escape(name)), Formatted::from(name));
    }
}

#[test]
fn a_channel_gets_what_it_shows() {
    let text = Formatted::parse("**a** [b](https://x.org)");
    let parts = |markup| text.parts(markup, utf16(100));
    assert_eq!(parts(Markup::Plain), [Formatted::from("a b (https://x.org)")]);
    assert_eq!(parts(Markup::WhatsApp), [Formatted::from("*a* b (https://x.org)")]);
    assert_eq!(parts(Markup::Spans), std::slice::from_ref(&text));
}

#[test]
fn what_is_cut_goes_on_in_the_next_part() {
    let text = Formatted::parse("**aaa bbb ccc** [ddd eee](u)");
    let parts = text.parts(Markup::Spans, utf16(8));
    let shown: Vec<_> = parts.iter().map(shown).collect();
    let link = link("u");
    let expected = [
        ("aaa bbb", vec![("aaa bbb", &Style::Bold)]),
        ("ccc ddd", vec![("ccc", &Style::Bold), ("ddd", &link)]),
        ("eee", vec![("eee", &link)]),
    ];
    assert_eq!(shown, expected);
    let marked = Formatted::parse("**aaa bbb ccc**").parts(Markup::WhatsApp, utf16(9));
    assert_eq!(marked, ["*aaa bbb*", "*ccc*"].map(Formatted::from), "the marks count");
    let tight = Formatted::parse("**😀😀**").parts(Markup::WhatsApp, utf16(3));
    assert_eq!(tight, ["😀", "😀"].map(Formatted::from), "rather plain than not at all");
}

#[test]
fn content_keeps_its_stored_form_and_reads_the_old_one() {
    let plain = Content::text("hi");
    let stored = r#"{"body":{"type":"text","text":"hi"}}"#;
    assert_eq!(serde_json::to_string(&plain).unwrap(), stored);
    assert_eq!(serde_json::from_str::<Content>(stored).unwrap(), plain);
    let content = Content::from(Formatted::parse("**hi** [x](u)"));
    let stored = concat!(
        r#"{"body":{"type":"text","text":"hi x"},"#,
        r#""spans":[{"start":0,"end":2,"style":"bold"},{"start":3,"end":4,"style":"link","url":"u"}]}"#
    );
    assert_eq!(serde_json::to_string(&content).unwrap(), stored);
    assert_eq!(serde_json::from_str::<Content>(stored).unwrap(), content);
    let tampered = r#"{"body":{"type":"text","text":"é"},"spans":[{"start":1,"end":99,"style":"bold"}]}"#;
    let tampered: Content = serde_json::from_str(tampered).unwrap();
    assert_eq!(shown(&tampered.formatted()), ("é", vec![("é", &Style::Bold)]));
}

#[test]
fn a_caption_is_formatted_as_a_text_is() {
    let source = crate::content::MediaSource::Id("1".to_owned());
    let image = ContentBody::Image(OutboundMedia { source, caption: None, mime: None, file_name: None });
    let content = Content::from(image).with_text(Formatted::parse("*hi*"));
    assert_eq!(content.readable_text(), "hi");
    assert_eq!(content.formatted(), Formatted::styled("hi", Style::Italic));
}
