use super::*;

#[test]
fn network_and_user_space_filesystems_are_refused_by_magic() {
    for (magic, name) in [
        (0x6969, "nfs"),
        (0x517b, "smb"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb2"),
        (0x0102_1997, "9p"),
        (0x6573_5546, "fuse or virtiofs"),
    ] {
        assert_eq!(by_magic(magic), Some(name));
    }
}

#[test]
fn local_filesystems_are_accepted() {
    // ext4, xfs, btrfs, tmpfs, overlay, zfs, f2fs
    for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1, 0xf2f5_2010] {
        assert_eq!(by_magic(magic), None, "{magic:#x}");
    }
}

#[test]
fn the_mount_table_gives_the_exact_name() {
    let table = "22 28 0:20 / /proc rw - proc proc rw\n\
                 36 28 0:45 / /srv/data rw,nosuid shared:7 - fuse.sshfs host:/ rw\n";
    assert_eq!(named_in(table, "0:45").as_deref(), Some("fuse.sshfs"));
    assert_eq!(named_in(table, "0:46"), None);
}
