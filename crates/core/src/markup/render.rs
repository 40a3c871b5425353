use super::{Formatted, Span, Style, Utf16Span};

pub(super) fn utf16_spans(formatted: &Formatted) -> Vec<Utf16Span<'_>> {
    let Formatted { text, spans } = formatted;
    let mut edges: Vec<usize> = spans.iter().flat_map(|span| [span.start, span.end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let (mut at, mut units) = (0, 0);
    let counted: Vec<usize> = edges
        .iter()
        .map(|&edge| {
            units += text[at..edge].encode_utf16().count();
            at = edge;
            units
        })
        .collect();
    let place = |edge: usize| edges.binary_search(&edge).map_or(0, |n| counted[n]);
    let spans = spans.iter().map(|span| {
        let offset = place(span.start);
        Utf16Span { offset, length: place(span.end) - offset, style: &span.style }
    });
    spans.collect()
}

/// Writes the targets of links out.
pub(super) fn without_links(formatted: &Formatted) -> Formatted {
    let Formatted { text, spans } = formatted;
    let mut written = String::with_capacity(text.len());
    // Where something is inserted, and how much up to there.
    let mut inserted: Vec<(usize, usize)> = Vec::new();
    let (mut at, mut total) = (0, 0);
    for span in spans {
        let Style::Link { url } = &span.style else { continue };
        if says(&text[span.start..span.end], url) {
            continue;
        }
        written.push_str(&text[at..span.end]);
        let before = written.len();
        written.push_str(" (");
        written.push_str(url);
        written.push(')');
        total += written.len() - before;
        at = span.end;
        inserted.push((at, total));
    }
    if at == 0 && spans.iter().all(|span| !matches!(span.style, Style::Link { .. })) {
        return formatted.clone();
    }
    written.push_str(&text[at..]);
    let before = |edge: usize, also_here: bool| {
        let n = inserted.partition_point(|&(place, _)| place < edge || also_here && place == edge);
        n.checked_sub(1).map_or(0, |n| inserted[n].1)
    };
    let kept = spans.iter().filter(|span| !matches!(span.style, Style::Link { .. })).map(|span| {
        let (start, end) = (span.start + before(span.start, true), span.end + before(span.end, false));
        Span::new(start..end, span.style.clone())
    });
    Formatted::new(written, kept)
}

/// Whether a label shows where its link leads.
fn says(label: &str, url: &str) -> bool {
    let label = label.trim();
    let bare = ["https://", "http://", "mailto:", "tel:"].iter().find_map(|scheme| url.strip_prefix(scheme));
    label == url || Some(label) == bare
}
