//! A power cut: of the batch that was being written, any blocks may have reached the disk, in any order.

use std::fs;

use crate::support::{Journal, entries};

/// A small generator of numbers that look random, the same ones for one seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn batch(&mut self) -> Vec<Vec<u8>> {
        let largest = [30, 600, 6000][self.below(3) as usize];
        let entries = 1 + self.below(12);
        (0..entries).map(|_| (0..self.below(largest)).map(|_| 1 + self.below(255) as u8).collect()).collect()
    }
}

#[test]
fn what_was_synced_survives_any_power_cut_and_the_journal_always_opens() {
    let mut cut_inside = 0;
    for seed in 0..600 {
        let mut numbers = Numbers(seed);
        let journal = Journal::new();
        let mut log = journal.open_quickly().unwrap();
        for _ in 0..numbers.below(4) {
            log.append_batch(&numbers.batch()).unwrap();
            log.sync().unwrap();
        }
        let synced = entries(&log);
        let before = fs::read(journal.log()).unwrap();
        log.append_batch(&numbers.batch()).unwrap();
        let all = entries(&log);
        drop(log);

        let mut bytes = fs::read(journal.log()).unwrap();
        let block = [512, 4096][numbers.below(2) as usize];
        let lost = 1 + numbers.below(4);
        for start in (before.len() / block * block..bytes.len()).step_by(block) {
            if numbers.below(5) < lost {
                // What was in the block before stays, the new part reads as zeros.
                let end = (start + block).min(bytes.len());
                bytes[start.max(before.len())..end].fill(0);
            }
        }
        fs::write(journal.log(), &bytes).unwrap();

        let log = journal.open_quickly().unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        let found = entries(&log);
        assert!(found.len() >= synced.len() && all.starts_with(&found), "seed {seed}");
        cut_inside += u64::from(found.len() < all.len());
    }
    assert!(cut_inside > 100, "{cut_inside}");
}
