//! What holds of every text. The cases of a number are known failures of other systems.

use botmesh_core::markup::{Formatted, Markup, Span, Style};
use botmesh_core::provider::{TextLimit, TextUnit};
use proptest::prelude::*;
use unicode_segmentation::UnicodeSegmentation;

/// Texts of marks, words, spaces, and what is more than one code point.
fn text() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "*",
        "**",
        "_",
        "__",
        "~",
        "~~",
        "`",
        "```",
        "[",
        "](",
        ")",
        "\\",
        "\n",
        "\n\n",
        " ",
        "- ",
        "a",
        "b1",
        "é",
        "e\u{301}",
        "😀",
        "👨‍👩‍👧",
        "🇪🇸",
        "ñandú",
        ". ",
        "。",
        "https://x.org/_a_",
        "(",
        "!",
        "\u{200b}",
        "\r\n",
    ]);
    prop::collection::vec(pieces, 0..60).prop_map(|pieces| pieces.concat())
}

fn style() -> impl Strategy<Value = Style> {
    prop_oneof![
        Just(Style::Bold),
        Just(Style::Italic),
        Just(Style::Strikethrough),
        Just(Style::Code),
        Just(Style::Pre { language: None }),
        Just(Style::Link { url: "mailto:a_b@x.org".to_owned() }),
    ]
}

fn spans() -> impl Strategy<Value = Vec<Span>> {
    let span = (0..200usize, 0..60usize, style());
    prop::collection::vec(
        span.prop_map(|(start, length, style)| Span::new(start..start + length, style)),
        0..8,
    )
}

fn formatted() -> impl Strategy<Value = Formatted> {
    prop_oneof![
        text().prop_map(|text| Formatted::parse(&text)),
        (text(), spans()).prop_map(|(text, spans)| Formatted::new(text, spans)),
    ]
}

fn limit() -> impl Strategy<Value = TextLimit> {
    let unit = prop::sample::select(vec![TextUnit::Bytes, TextUnit::CodePoints, TextUnit::Utf16]);
    (1..80usize, unit).prop_map(|(max, unit)| TextLimit { max, unit })
}

fn assert_in_order(formatted: &Formatted) {
    let (text, spans) = (formatted.text(), formatted.spans());
    for span in spans {
        assert!(span.start < span.end && span.end <= text.len(), "{formatted:?}");
        assert!(text.is_char_boundary(span.start) && text.is_char_boundary(span.end));
    }
    for (n, one) in spans.iter().enumerate() {
        for other in &spans[n + 1..] {
            assert!(
                other.start >= one.end || (other.end <= one.end && other.start >= one.start),
                "{formatted:?}"
            );
            let is_code = |span: &Span| matches!(span.style, Style::Code | Style::Pre { .. });
            assert!(!(is_code(one) || is_code(other)) || other.start >= one.end, "{formatted:?}");
        }
    }
    assert_eq!(&Formatted::new(text, spans.iter().cloned()), formatted, "it is in order already");
}

/// The styles of each character that is no white space.
fn styles(formatted: &Formatted) -> Vec<(char, Vec<Style>)> {
    let characters = formatted.text().char_indices().filter(|(_, c)| !c.is_whitespace());
    characters
        .map(|(at, c)| {
            let here = formatted.spans().iter().filter(|span| span.start <= at && at < span.end);
            let mut styles: Vec<Style> = here.map(|span| span.style.clone()).collect();
            styles.sort_by_key(|style| format!("{style:?}"));
            (c, styles)
        })
        .collect()
}

/// Reads a text as WhatsApp does: which characters it shows, and which of them bold, italic or struck through.
fn read_by_whatsapp(text: &str) -> Vec<(char, [bool; 3])> {
    let is_word = |c: Option<&char>| c.is_some_and(|c| c.is_alphanumeric());
    let is_space = |c: Option<&char>| c.is_none_or(|c| c.is_whitespace());
    let mut shown = Vec::new();
    let mut rest: Vec<(char, bool)> = Vec::new();
    // Code first: nothing in it is a mark.
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    'text: while at < chars.len() {
        for ticks in [3, 1] {
            let fence = vec!['`'; ticks];
            if !chars[at..].starts_with(&fence) || (ticks == 1 && at > 0 && is_word(chars.get(at - 1))) {
                continue;
            }
            let ends = |end: &usize| {
                chars[*end..].starts_with(&fence) && (ticks == 3 || !chars[at + 1..*end].contains(&'\n'))
            };
            if let Some(end) = (at + ticks + 1..chars.len()).find(ends) {
                rest.extend(chars[at + ticks..end].iter().map(|c| (*c, true)));
                at = end + ticks;
                continue 'text;
            }
        }
        rest.push((chars[at], false));
        at += 1;
    }
    for line in rest.split_inclusive(|(c, _)| *c == '\n') {
        let char_at = |at: usize| line.get(at).map(|(c, _)| c);
        let mut marks: Vec<Option<(usize, usize)>> = Vec::new();
        for mark in ['*', '_', '~'] {
            let places: Vec<usize> = (0..line.len()).filter(|&at| line[at] == (mark, false)).collect();
            let mut begun = None;
            for at in places {
                let before = at.checked_sub(1).and_then(char_at);
                let (begins, ends) = (
                    !is_word(before) && !is_space(char_at(at + 1)),
                    !is_space(before) && !is_word(char_at(at + 1)),
                );
                match begun {
                    Some(from) if ends && at > from + 1 => {
                        marks.push(Some((from, at)));
                        begun = None;
                    }
                    None if begins => begun = Some(at),
                    _ => {}
                }
            }
        }
        for (at, (c, is_code)) in line.iter().enumerate() {
            if marks.iter().flatten().any(|&(from, to)| at == from || at == to) {
                continue;
            }
            let mut styles = [false; 3];
            for (from, to) in marks.iter().flatten() {
                let kind = ['*', '_', '~'].iter().position(|mark| *mark == line[*from].0).expect("a mark");
                styles[kind] |= *from < at && at < *to && !is_code;
            }
            shown.push((*c, styles));
        }
    }
    shown
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_read_is_in_order(text in text()) {
        let read = Formatted::parse(&text);
        assert_in_order(&read);
        let is_source = |c: &char| !c.is_whitespace() && *c != '•';
        let mut source = text.chars();
        prop_assert!(read.text().chars().filter(is_source).all(|c| source.any(|from| from == c)), "{text:?}: {read:?}");
    }

    #[test]
    fn any_text_can_be_read(text in "\\PC*") {
        assert_in_order(&Formatted::parse(&text));
    }

    #[test]
    fn what_is_escaped_is_read_as_it_was(text in text()) {
        prop_assert_eq!(Formatted::parse(&Formatted::escape(&text)), Formatted::from(text));
    }

    #[test]
    fn what_is_escaped_can_stand_in_markup(text in "[a-z*_`~\\\\\\[\\]()-]{1,20}") {
        let read = Formatted::parse(&format!("x **{}** y", Formatted::escape(&text)));
        prop_assert_eq!(read, Formatted::from("x ") + Formatted::styled(text, Style::Bold) + " y");
    }

    #[test]
    fn spans_are_in_order_whatever_is_given(text in text(), spans in spans()) {
        assert_in_order(&Formatted::new(text, spans));
    }

    #[test]
    fn parts_fit_and_lose_no_character_and_no_style(formatted in formatted(), limit in limit()) {
        let parts = formatted.parts(Markup::Spans, Some(limit));
        prop_assert_eq!(&parts, &formatted.parts(Markup::Spans, Some(limit)));
        let all: Vec<_> = parts.iter().flat_map(styles).collect();
        prop_assert_eq!(all, styles(&formatted));
        for part in &parts {
            assert_in_order(part);
            prop_assert!(parts.len() == 1 || !part.text().trim().is_empty(), "{:?}", parts);
            prop_assert!(limit.measure(part.text()) <= limit.max || part.text().chars().count() == 1);
        }
    }

    #[test]
    fn no_cut_is_within_a_character_as_a_reader_sees_it(formatted in formatted(), limit in limit()) {
        let whole: Vec<&str> = formatted.text().graphemes(true).collect();
        prop_assume!(whole.iter().all(|character| limit.measure(character) <= limit.max));
        let parts = formatted.parts(Markup::Spans, Some(limit));
        let read = parts.iter().flat_map(|part| part.text().graphemes(true));
        let visible = |character: &&str| !character.trim().is_empty();
        prop_assert_eq!(read.filter(visible).collect::<Vec<_>>(), whole.into_iter().filter(visible).collect::<Vec<_>>());
    }

    #[test]
    fn marks_fit_as_well(formatted in formatted(), limit in limit()) {
        for markup in [Markup::Plain, Markup::WhatsApp] {
            let parts = formatted.parts(markup, Some(limit));
            for part in &parts {
                prop_assert!(part.spans().is_empty());
                prop_assert!(parts.len() == 1 || !part.text().trim().is_empty());
                prop_assert!(limit.measure(part.text()) <= limit.max || part.text().chars().count() == 1, "{:?}", part);
            }
        }
    }

    #[test]
    fn whatsapp_shows_the_text_and_no_style_that_it_has_not(formatted in formatted()) {
        let addressless = formatted.text().replace("://", ":::");
        let formatted = Formatted::new(addressless, formatted.spans().iter().cloned());
        let plain = Formatted::new(formatted.to_plain(), []);
        let visible = |c: &char| !c.is_whitespace();
        let alike = |c: char| match c { '∗' => '*', '＿' => '_', '∼' => '~', '‵' => '`', c => c };
        let written = formatted.to_whatsapp();
        // Of targets of links: addresses stay as they are.
        prop_assume!(!written.contains("://"));
        let read = read_by_whatsapp(&written);
        let text: String = read.iter().map(|(c, _)| alike(*c)).filter(visible).collect();
        prop_assert_eq!(text, plain.text().chars().filter(visible).collect::<String>(), "{}", written);
        let wanted = styles(&formatted);
        let shown = read.iter().filter(|(c, _)| visible(c));
        if formatted.spans().iter().all(|span| !matches!(span.style, Style::Link { .. })) {
            for ((c, shown), (_, wanted)) in shown.zip(&wanted) {
                for (shown, style) in shown.iter().zip([Style::Bold, Style::Italic, Style::Strikethrough]) {
                    prop_assert!(!shown || wanted.contains(&style), "{c} is {style:?} in {written:?}");
                }
            }
        }
    }
}

#[test]
fn case_63_no_cut_is_within_a_surrogate_pair() {
    let text = Formatted::styled(format!("{}🎩{}", "a".repeat(4095), "b".repeat(10)), Style::Bold);
    let parts = text.parts(Markup::Spans, Some(TextLimit { max: 4096, unit: TextUnit::Utf16 }));
    assert_eq!(parts.iter().map(|part| part.text().encode_utf16().count()).collect::<Vec<_>>(), [4095, 12]);
    assert!(parts[1].text().starts_with('🎩'));
}

#[test]
fn case_65_bold_over_the_limit_is_bold_in_each_part() {
    let text = Formatted::parse(&format!("**{}**", "a".repeat(5000)));
    let parts = text.parts(Markup::Spans, Some(TextLimit { max: 4096, unit: TextUnit::Utf16 }));
    let expected = [4096, 904].map(|length| Formatted::styled("a".repeat(length), Style::Bold));
    assert_eq!(parts, expected);
    let marked = text.parts(Markup::WhatsApp, Some(TextLimit { max: 4096, unit: TextUnit::Utf16 }));
    let expected = [4094, 906].map(|length| Formatted::from(format!("*{}*", "a".repeat(length))));
    assert_eq!(marked, expected);
}

#[test]
fn case_67_a_part_has_less_than_32_kib() {
    let text = Formatted::styled("😀".repeat(4000), Style::Bold);
    let parts = text.parts(Markup::Spans, Some(TextLimit { max: 4096, unit: TextUnit::Utf16 }));
    assert_eq!(parts.len(), 2);
    assert!(parts.iter().all(|part| part.text().len() < 32 * 1024));
}

#[test]
fn case_95_a_limit_in_bytes_counts_bytes() {
    let text = Formatted::styled("😀".repeat(260), Style::Bold);
    let parts = text.parts(Markup::Plain, Some(TextLimit { max: 1000, unit: TextUnit::Bytes }));
    assert_eq!(parts.iter().map(|part| part.text().len()).collect::<Vec<_>>(), [1000, 40]);
}
