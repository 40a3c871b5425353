use super::*;

#[test]
fn a_hint_survives_the_round_trip() {
    let holder = LockHolder { pid: Some(7), start_time: Some(99), boot_id: Some("a-b".into()) };
    assert_eq!(LockHolder::parse(&holder.encode()), holder);
    assert_eq!(holder.to_string(), "by process 7, says its lock file");
}

#[test]
fn a_foreign_or_torn_hint_is_no_hint() {
    for text in ["", "{pid:1,host:'old'}", "pid=", "pid=many\nboot_id=\n", "\0\0\0\0"] {
        assert_eq!(LockHolder::parse(text), LockHolder::default(), "{text:?}");
    }
    assert!(LockHolder::default().to_string().contains("does not name"));
}

#[test]
fn this_process_recognises_itself() {
    assert_eq!(LockHolder::current().to_string(), "in this process");
}

#[cfg(target_os = "linux")]
#[test]
fn linux_knows_start_time_and_boot() {
    let holder = LockHolder::current();
    assert!(holder.start_time.is_some_and(|ticks| ticks > 0));
    assert!(holder.boot_id.is_some_and(|boot| boot.len() == 36));
}
