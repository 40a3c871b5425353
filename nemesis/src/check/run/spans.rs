//! Times of which only the union is of interest.

/// Spans of time that do not touch, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::check) struct Spans {
    spans: Vec<(u64, u64)>,
    /// The length of all spans before each one.
    before: Vec<u64>,
}

impl Spans {
    /// What ends before it begins is none.
    pub(in crate::check) fn new(mut spans: Vec<(u64, u64)>) -> Self {
        spans.retain(|(from, to)| from <= to);
        spans.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to) in spans {
            match merged.last_mut() {
                Some((_, last)) if from <= *last => *last = to.max(*last),
                _ => merged.push((from, to)),
            }
        }
        let mut before = Vec::with_capacity(merged.len());
        let mut length = 0;
        for (from, to) in &merged {
            before.push(length);
            length += to - from;
        }
        Self { spans: merged, before }
    }

    pub(in crate::check) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.spans.iter().copied()
    }

    /// The first span that ends at or after a time.
    fn first(&self, from: u64) -> usize {
        self.spans.partition_point(|(_, to)| *to < from)
    }

    /// Whether any of it is between these times.
    pub(in crate::check) fn hits(&self, from: u64, to: u64) -> bool {
        self.spans.get(self.first(from)).is_some_and(|(begin, _)| *begin <= to)
    }

    /// The span at a time.
    pub(in crate::check) fn at(&self, t: u64) -> Option<(u64, u64)> {
        self.spans.get(self.first(t)).copied().filter(|(from, _)| *from <= t)
    }

    /// How much of it is between these times.
    pub(in crate::check) fn length(&self, from: u64, to: u64) -> u64 {
        let until = |t: u64| {
            let place = self.spans.partition_point(|(begin, _)| *begin < t);
            let Some(last) = place.checked_sub(1) else { return 0 };
            let (begin, end) = self.spans[last];
            self.before[last] + t.min(end).saturating_sub(begin)
        };
        until(to).saturating_sub(until(from))
    }
}

#[cfg(test)]
mod tests {
    use super::Spans;

    #[test]
    fn spans_are_merged_and_measured() {
        let spans = Spans::new(vec![(50, 60), (10, 20), (15, 30)]);
        assert_eq!(spans.iter().collect::<Vec<_>>(), [(10, 30), (50, 60)]);
        for (from, to, hits, length) in
            [(0, 9, false, 0), (0, 10, true, 0), (25, 55, true, 10), (31, 49, false, 0), (0, 99, true, 30)]
        {
            assert_eq!((spans.hits(from, to), spans.length(from, to)), (hits, length), "{from} {to}");
        }
        assert_eq!((spans.at(30), spans.at(40)), (Some((10, 30)), None));
    }
}
