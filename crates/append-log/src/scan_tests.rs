use super::*;
use crate::frame::encode;

const HEADER: LogHeader = LogHeader { base: 0, salt: 0x5eed };

/// A run of frames from entry `first` on; `payloads[i]` is written with `unsynced[i]`.
fn frames(first: u64, payloads: &[&[u8]], unsynced: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (sequence, (payload, &unsynced)) in (first..).zip(payloads.iter().zip(unsynced)) {
        encode(&mut bytes, HEADER.salt, sequence, unsynced, payload);
    }
    bytes
}

fn judge_at(tail: &[u8], offset: u64, expected: u64) -> Verdict {
    judge(tail, offset, expected, HEADER)
}

#[test]
fn an_incomplete_last_frame_is_torn() {
    let whole = frames(5, &[b"payload"], &[0]);
    for length in 1..whole.len() {
        assert_eq!(judge_at(&whole[..length], 100, 5), Verdict::Torn, "{length}");
    }
}

#[test]
fn a_bad_frame_before_a_synced_one_is_damage() {
    let mut tail = frames(5, &[b"five", b"six"], &[0, 0]);
    for byte in 0..FRAME_OVERHEAD + 4 {
        tail[byte] ^= 0x10;
        assert_eq!(judge_at(&tail, 100, 5), Verdict::Damaged, "{byte}");
        tail[byte] ^= 0x10;
    }
}

#[test]
fn zeros_before_a_later_batch_are_damage() {
    let mut tail = frames(5, &[&[7; 600], b"six"], &[0, 0]);
    tail[..620].fill(0);
    assert_eq!(judge_at(&tail, 0, 5), Verdict::Damaged);
}

#[test]
fn a_flipped_bit_within_the_last_batch_is_damage() {
    let mut tail = frames(5, &[b"five", b"six", b"seven"], &[0, 1, 2]);
    tail[21] ^= 1;
    assert_eq!(judge_at(&tail, 100, 5), Verdict::Damaged);
}

#[test]
fn a_block_that_the_last_batch_lost_is_torn() {
    let whole = frames(5, &[&[7; 2000], b"six", b"seven"], &[0, 1, 2]);
    // The file's sectors start at multiples of 512, the tail at 100.
    let mut tail = whole.clone();
    tail[412..924].fill(0);
    assert_eq!(judge_at(&tail, 100, 5), Verdict::Torn);
    // As many zeros that are no whole sector are no lost block.
    let mut tail = whole.clone();
    tail[400..912].fill(0);
    assert_eq!(judge_at(&tail, 100, 5), Verdict::Damaged);
    // The start of the frame alone, in a block that ends behind it; as many zeros within a block are damage.
    for length in [2, 19, 20, 24, 500] {
        let mut tail = whole.clone();
        tail[..length].fill(0);
        assert_eq!(judge_at(&tail, 1024 - length as u64, 5), Verdict::Torn, "{length}");
        assert_eq!(judge_at(&tail, 1025, 5), Verdict::Damaged, "{length}");
    }
}

#[test]
fn a_log_inside_a_torn_payload_is_not_mistaken_for_a_later_entry() {
    let mut inner = Vec::new();
    encode(&mut inner, 0x07e4, 6, 0, b"of another log");
    let mut tail = frames(5, &[&inner.repeat(3)], &[0]);
    tail.pop();
    assert_eq!(judge_at(&tail, 100, 5), Verdict::Torn);
}

#[test]
fn frames_of_an_earlier_log_do_not_count() {
    // A sequence number that was given out long ago, and one that cannot have been reached yet.
    for sequence in [4, 9000] {
        let mut tail = vec![1; 30];
        encode(&mut tail, HEADER.salt, sequence, 0, b"stale");
        assert_eq!(judge_at(&tail, 100, 5), Verdict::Torn, "{sequence}");
    }
}

#[test]
fn a_torn_payload_full_of_small_numbers_is_searched_in_bounded_time() {
    let numbers: Vec<u8> = (0..200_000_u64).flat_map(|number| (number % 50 + 5).to_le_bytes()).collect();
    let mut tail = frames(5, &[&numbers], &[0]);
    tail.pop();
    assert_eq!(judge_at(&tail, 100, 5), Verdict::Torn);
}
