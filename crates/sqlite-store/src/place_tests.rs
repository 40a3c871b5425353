use super::*;

#[cfg(target_os = "linux")]
#[test]
fn network_and_fuse_file_systems_are_known_and_local_ones_are_not() {
    for (magic, name) in [
        (0x6969, "nfs"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb2"),
        (0x0102_1997, "9p"),
        (0x6573_5546, "fuse or virtiofs"),
    ] {
        assert_eq!(by_magic(magic), Some(name));
    }
    for (magic, name) in
        [(0xef53, "ext4"), (0x5846_5342, "xfs"), (0x9123_683e, "btrfs"), (0x0102_1994, "tmpfs")]
    {
        assert_eq!(by_magic(magic), None, "{name}");
    }
}

#[test]
fn what_is_not_a_file_name_is_misuse() {
    for path in ["", "/", "data/..", ":memory:", "data/:memory:"] {
        let fault = prepare(Path::new(path), &SqliteConfig::default()).unwrap_err();
        assert_eq!(fault.kind(), StoreErrorKind::Misuse, "{path}");
    }
}

#[test]
fn a_parent_that_is_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let Err(Fault::Own { kind, message }) = prepare(&file.join("bot.db"), &SqliteConfig::default()) else {
        panic!("a file cannot hold a database");
    };
    assert_eq!(kind, StoreErrorKind::Misuse);
    assert!(message.contains(&file.display().to_string()), "{message}");
}

#[test]
fn an_emptied_database_beside_its_log_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    fs::write(&path, "").unwrap();
    fs::write(beside(&path, "-wal"), "frames").unwrap();
    let fault = prepare(&path, &SqliteConfig::default()).unwrap_err();
    assert_eq!(fault.kind(), StoreErrorKind::Corrupt);
    assert_eq!(fs::read(beside(&path, "-wal")).unwrap(), b"frames");
}
