//! What the server counted, and how figures are summed up.

use std::collections::HashMap;
use std::time::Duration;

use botmesh_test_servers::Redis;
use serde_json::{Value, json};

use crate::host::sleep;

/// Calls of the server's commands, and the microseconds that it worked on them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands(HashMap<String, (u64, u64)>);

impl Commands {
    pub(crate) fn so_far(redis: &Redis) -> Self {
        let text = redis.command(&["INFO", "commandstats"]).unwrap().text().unwrap_or_default();
        let line = |line: &str| {
            let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let field = |name: &str| {
                let value = fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
                value.and_then(|value| value.parse::<u64>().ok())
            };
            Some((name.to_owned(), (field("calls")?, field("usec")?)))
        };
        Self(text.lines().filter_map(line).collect())
    }

    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |(calls, _)| *calls)
    }

    pub(crate) fn micros(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |(_, micros)| *micros)
    }

    /// What came since then. Waits until as many scripts as these have run: the last ones are still under way.
    pub(crate) async fn since(&self, redis: &Redis, scripts: u64) -> Self {
        let mut tries = 0;
        loop {
            let after = Self::so_far(redis);
            if after.calls("evalsha") - self.calls("evalsha") >= scripts || tries == 1000 {
                let less = |(name, (calls, micros)): (String, (u64, u64))| {
                    let differences = (calls - self.calls(&name), micros - self.micros(&name));
                    (name, differences)
                };
                return Self(after.0.into_iter().map(less).collect());
            }
            tries += 1;
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The median of the rounds, and the extremes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_unstable_by(f64::total_cmp);
        let (Some(min), Some(max)) = (figures.first(), figures.last()) else { return Self::default() };
        Self { median: figures[figures.len() / 2], min: *min, max: *max }
    }

    /// Round by round: each of these over the one of the same round.
    pub(crate) fn ratio<'a>(
        these: impl IntoIterator<Item = &'a f64>,
        those: impl IntoIterator<Item = &'a f64>,
    ) -> Self {
        Self::of(these.into_iter().zip(those).map(|(this, that)| this / that))
    }

    pub(crate) fn json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }

    /// As `0.61 (0.55 to 0.70)`, times `scale`.
    pub(crate) fn text(self, scale: f64, decimals: usize) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(|figure| figure * scale);
        format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
    }
}

/// The value below which this share of the sorted samples is.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}
