use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use super::{Span, Style};

/// Which of two styles is kept where they cannot both be shown.
fn rank(style: &Style) -> usize {
    match style {
        Style::Link { .. } => 0,
        Style::Code | Style::Pre { .. } => 1,
        Style::Bold => 2,
        Style::Italic => 3,
        Style::Strikethrough => 4,
    }
}

pub(super) fn in_order(text: &str, spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut kinds: [Vec<Span>; 5] = Default::default();
    for span in spans {
        let (start, end) = (text.floor_char_boundary(span.start), text.floor_char_boundary(span.end));
        if start < end {
            kinds[rank(&span.style)].push(Span::new(start..end, span.style));
        }
    }
    for kind in &mut kinds {
        kind.sort_by_key(|span| (span.start, Reverse(span.end)));
    }
    let [links, code, others @ ..] = kinds;
    let links = one_at_a_time(links);
    let code = one_at_a_time(without(one_at_a_time(code), &links));
    let mut all = Vec::new();
    for other in others {
        all.extend(without(merged(other), &code).into_iter().flat_map(|span| cut_at_edges(span, &links)));
    }
    all.extend(links);
    all.extend(code);
    nested(&all)
}

/// What begins within the one before it begins after it.
fn one_at_a_time(spans: Vec<Span>) -> Vec<Span> {
    let mut last = 0;
    let kept = spans.into_iter().filter_map(|span| {
        let start = span.start.max(last);
        last = last.max(span.end);
        (start < span.end).then(|| Span::new(start..span.end, span.style))
    });
    kept.collect()
}

fn merged(spans: Vec<Span>) -> Vec<Span> {
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

/// Those of `holes` that have something in common with `range`. They are apart and in order.
fn touching<'a>(holes: &'a [Span], range: &Range<usize>) -> impl Iterator<Item = &'a Span> + use<'a> {
    let first = holes.partition_point(|hole| hole.end <= range.start);
    let end = range.end;
    holes[first..].iter().take_while(move |hole| hole.start < end)
}

/// What is left of each span outside of the holes.
fn without(spans: Vec<Span>, holes: &[Span]) -> Vec<Span> {
    let mut left = Vec::new();
    for Span { mut start, end, style } in spans {
        for hole in touching(holes, &(start..end)) {
            if start < hole.start {
                left.push(Span::new(start..hole.start, style.clone()));
            }
            start = hole.end;
        }
        if start < end {
            left.push(Span::new(start..end, style));
        }
    }
    left
}

/// Cuts a span at the ends of the links that reach out of it, so that no link is cut.
fn cut_at_edges(span: Span, links: &[Span]) -> Vec<Span> {
    let Span { mut start, end, style } = span;
    let mut pieces = Vec::new();
    let edges =
        touching(links, &(start..end)).filter_map(|link| match (link.start < start, link.end > end) {
            (true, false) => Some(link.end),
            (false, true) => Some(link.start),
            _ => None,
        });
    for edge in edges.collect::<Vec<_>>() {
        if start < edge && edge < end {
            pieces.push(Span::new(start..edge, style.clone()));
            start = edge;
        }
    }
    pieces.push(Span::new(start..end, style));
    pieces
}

/// Cuts what reaches out of a span that began before it.
fn nested(spans: &[Span]) -> Vec<Span> {
    let mut queue: BTreeSet<_> = spans
        .iter()
        .enumerate()
        .map(|(n, span)| (span.start, Reverse(span.end), rank(&span.style), n))
        .collect();
    let (mut nested, mut open): (Vec<Span>, Vec<usize>) = (Vec::new(), Vec::new());
    while let Some((start, Reverse(end), rank, n)) = queue.pop_first() {
        while open.last().is_some_and(|&outer| outer <= start) {
            open.pop();
        }
        let here = open.last().map_or(end, |&outer| outer.min(end));
        if here < end {
            queue.insert((here, Reverse(end), rank, n));
        }
        open.push(here);
        nested.push(Span::new(start..here, spans[n].style.clone()));
    }
    nested
}
