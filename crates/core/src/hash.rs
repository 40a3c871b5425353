//! A hash for what is stored or compared across versions and machines. Not for secrets.

/// FNV-1a, 64 bits (Fowler, Noll, Vo): the same bytes give the same number, always and everywhere.
pub fn stable_hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.into_iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
