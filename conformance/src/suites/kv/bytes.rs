//! Keys and values are bytes and stay the bytes they are.

use botmesh_core::Bytes;
use botmesh_core::error::{Effect, StoreErrorKind};
use botmesh_core::kv::{Expect, Index, MAX_KEY, Op};

use super::tools::{
    Done, Kv, NOWHERE, applied, create, create_at, delete, due, due_until, existing, get, is_refused_whole,
    key, keys, kv, list, paged, put, put_at,
};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, NOT_CLAIMED, PASSED};

/// The size that every backend must take.
const MIB: usize = 1 << 20;

/// The largest value that a case makes.
const MOST: usize = 64 * MIB;

pub(super) fn cases() -> Vec<Case> {
    cases![
        keys_are_byte_exact: "keys that look like the same number, text or case are different keys",
        the_longest_key_is_taken: "a key of 2,048 bytes works, also in indexes and cursors",
        a_key_too_long_is_refused: "a key of 2,049 bytes is refused as too large, with nothing of its batch applied",
        values_are_byte_exact: "empty, binary and JSON-like values come back byte for byte",
        a_value_of_a_mebibyte_is_taken: "a value of 1 MiB comes back byte for byte, also from a scan",
        the_largest_value_is_taken: "a value of the size that the backend claims comes back byte for byte",
        a_value_too_large_is_refused: "one byte more is refused as too large, with nothing of its batch applied",
    ]
}

/// Keys that a backend with numbers, text or patterns in it confuses.
fn look_alikes() -> Vec<Bytes> {
    let texts = [
        "300000000",
        "3e+8",
        "3e8",
        "1",
        "01",
        "1.0",
        "+1",
        " 1",
        "1 ",
        "-0",
        "0",
        "9007199254740993",
        "9007199254740992",
        "key",
        "Key",
        "KEY",
        "key ",
        "k%",
        "k_",
        "k*",
        "k?",
        "k[ey]",
        "k\\",
        "k'",
        "k\"",
        "k;--",
        "é",
        "e\u{301}",
        "ß",
        "ss",
        "SS",
        "ı",
        "i",
        "\u{1F600}",
        "\u{FEFF}key",
        "null",
        "NULL",
        "true",
        "{}",
        "",
    ];
    let bytes: [&[u8]; 10] = [
        b"key\0",
        b"\0key",
        b"\0",
        b"\0\0",
        b"\xff",
        b"\xff\xff",
        b"\xff\0",
        b"\xc3\x28",
        b"\x80",
        b"\xed\xa0\xbd",
    ];
    texts.into_iter().map(key).chain(bytes.into_iter().map(key)).collect()
}

async fn keys_are_byte_exact(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let mut names = look_alikes();
    for (n, name) in names.iter().enumerate() {
        applied(&kv, put_at(name, Expect::Absent, n.to_string(), due(1)))
            .await
            .map_err(|failure| failure.during("is this key confused with another?"))?;
    }
    for ((n, name), entry) in names.iter().enumerate().zip(kv.get(&names).await?) {
        let found = entry.map(|entry| (entry.key, entry.value));
        ensure_eq!(found, Some((name.clone(), Bytes::from(n.to_string()))), "the entry of {name:?}");
    }
    names.sort();
    let found: Vec<_> = paged(&kv, due_until(1), 10).await?.into_iter().map(|entry| entry.key).collect();
    ensure_eq!(found, names, "the keys of a scan");
    let victim = existing(&kv, "1").await?;
    applied(&kv, delete("1", victim.version)).await?;
    let left = kv.get(&names).await?.into_iter().flatten().count();
    ensure_eq!(left, names.len() - 1, "the entries that are left after one delete");
    PASSED
}

async fn the_longest_key_is_taken(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let mut names = Vec::new();
    for last in [b'a', b'b', 0xff] {
        let mut name = vec![0xff; MAX_KEY];
        name[MAX_KEY - 1] = last;
        names.push(Bytes::from(name));
    }
    for name in &names {
        create_at(&kv, name, Index { due: due(1).due, list: Some((1, 1)) }).await?;
        ensure_eq!(existing(&kv, name).await?.key.len(), MAX_KEY, "the length of the key");
    }
    for range in [due_until(1), list(1, 0, 2)] {
        let found: Vec<_> = paged(&kv, range, 1).await?.into_iter().map(|entry| entry.key).collect();
        ensure!(found == names, "{range:?}: {} keys, not the three in their order", found.len());
    }
    PASSED
}

async fn a_key_too_long_is_refused(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let long = vec![b'k'; MAX_KEY + 1];
    refuses(&kv, put_at(long, Expect::Absent, "value", due(1))).await
}

/// The middle write of a batch is too large: the whole batch is refused.
async fn refuses(kv: &Kv, too_large: Op) -> CaseResult {
    let stays = create(kv, "stays", "old").await?;
    let batch = vec![
        put_at("before", Expect::Absent, "value", due(1)),
        put("stays", Expect::Version(stays), "new"),
        too_large,
        put_at("after", Expect::Absent, "value", due(1)),
    ];
    let error = is_refused_whole(kv, batch).await?;
    ensure_eq!(
        (error.kind(), error.effect()),
        (StoreErrorKind::TooLarge, Effect::None),
        "the error: {error}"
    );
    ensure!(!error.retry(), "the error promises that trying again may help");
    ensure!(get(kv, "before").await?.is_none(), "the write before it was applied");
    ensure!(get(kv, "after").await?.is_none(), "the write after it was applied");
    ensure_eq!(existing(kv, "stays").await?.value, "old", "the entry that a refused batch was to replace");
    ensure!(keys(kv, due_until(1)).await?.is_empty(), "a write of a refused batch is due");
    create(kv, "works", "value").await?;
    PASSED
}

async fn values_are_byte_exact(context: &mut Context) -> CaseResult {
    let every_byte: Vec<u8> = (0..=255).collect();
    let values: Vec<&[u8]> = vec![
        b"",
        b"\0",
        b"\0\0text\0",
        b"\xff\xfe\xc3\x28",
        &every_byte,
        br#"{"id":15947634569000323,"e":[],"f":0.1,"z":-0.0,"n":null}"#,
        br#"{ "a" : 1.0 , "a" : 1e308 }"#,
        "a\0b \u{1F600} e\u{301} \u{FEFF}".as_bytes(),
        br#"{"t":"\ud83d"}"#,
        b"line\r\nline\r\n",
        b"  spaces  ",
        b"300000000",
        b"3e+8",
    ];
    let kv = kv(context)?;
    for (n, value) in values.iter().enumerate() {
        let name = n.to_string();
        let version = create(&kv, &name, value).await?;
        ensure_eq!(existing(&kv, &name).await?.value, *value, "value {n}");
        let again = put_at(&name, Expect::Version(version), value, due(1));
        applied(&kv, again).await?;
        ensure_eq!(existing(&kv, &name).await?.value, *value, "value {n} written again");
    }
    for entry in kv.scan(due_until(1), None, 100).await? {
        let name = String::from_utf8_lossy(&entry.key).into_owned();
        let written = name.parse::<usize>().ok().and_then(|n| values.get(n).copied());
        ensure_eq!(Some(&entry.value[..]), written, "value {name} of a scan");
    }
    PASSED
}

/// Bytes without a pattern that a compression could use.
fn noise(size: usize) -> Bytes {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend(next());
    }
    bytes.truncate(size);
    Bytes::from(bytes)
}

async fn keeps(kv: &Kv, size: usize) -> Done {
    let value = noise(size);
    let op = Op::Put { key: key("large"), expect: Expect::Absent, value: value.clone(), index: due(1) };
    let version = applied_large(kv, op).await?;
    let found = existing(kv, "large").await?;
    ensure!(found.value == value, "{} of {size} bytes came back, or other ones", found.value.len());
    let scanned = kv.scan(due_until(1), None, 10).await?;
    ensure!(scanned.len() == 1 && scanned[0].value == value, "a scan gives another value");
    applied(kv, put_at("large", Expect::Version(version), "small", NOWHERE)).await?;
    ensure_eq!(existing(kv, "large").await?.value, "small", "the value that replaced the large one");
    Ok(())
}

/// Like [`applied`], without the value in the message.
async fn applied_large(kv: &Kv, op: Op) -> Done<botmesh_core::kv::Version> {
    match super::tools::commit(kv, op).await? {
        botmesh_core::kv::Outcome::Applied(version) => Ok(version),
        botmesh_core::kv::Outcome::Conflict(current) => {
            Err(crate::Failure::new(format!("the write of a new large value conflicts with {current:?}")))
        }
    }
}

async fn a_value_of_a_mebibyte_is_taken(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    ensure!(kv.caps().max_value >= MIB, "the backend takes only {} bytes", kv.caps().max_value);
    keeps(&kv, MIB).await?;
    PASSED
}

async fn the_largest_value_is_taken(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    if kv.caps().max_value > MOST {
        return NOT_CLAIMED;
    }
    keeps(&kv, kv.caps().max_value).await?;
    PASSED
}

async fn a_value_too_large_is_refused(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let Some(size) = kv.caps().max_value.checked_add(1).filter(|size| *size <= MOST + 1) else {
        return NOT_CLAIMED;
    };
    let value = Bytes::from(vec![b'v'; size]);
    refuses(&kv, Op::Put { key: key("large"), expect: Expect::Absent, value, index: due(1) }).await
}
