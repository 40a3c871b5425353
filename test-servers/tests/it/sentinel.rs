//! A master is replaced by a replica.

use botmesh_test_servers::{Options, Redis, Sentinel};

use crate::eventually;

fn role(redis: &Redis) -> String {
    redis.info("role").ok().flatten().unwrap_or_default()
}

#[test]
fn a_failover_with_cut_replication_loses_the_last_writes() {
    let set = Sentinel::start(&Options::new().with_password("secret"), 1).expect("it starts");
    let url = set.url();
    assert!(
        url.starts_with("redis-sentinel://:secret@127.0.0.1:") && url.contains("sentinelServiceName=botmesh")
    );
    let old = set.master().expect("there is one");
    assert_eq!(old.address(), set.servers()[0].address());
    let mut client = old.connection().expect("it accepts");
    client.command(&["SET", "before", "kept"]).expect("it writes");
    assert_eq!(client.command(&["WAIT", "1", "20000"]).expect("it waits").int(), Some(1));
    old.cut_replication().expect("it obeys");
    client.command(&["SET", "after", "lost"]).expect("it writes without its replica");
    // Long enough for a replica that may come back.
    assert_eq!(client.command(&["WAIT", "1", "2500"]).expect("it waits").int(), Some(0));

    let new = set.fail_over().expect("the replica takes over");
    assert_eq!(new.address(), set.servers()[1].address());
    assert_eq!(new.command(&["GET", "before"]).expect("it answers").text().as_deref(), Some("kept"));
    assert_eq!(new.command(&["GET", "after"]).expect("it answers").text(), None);
    old.restart().expect("it comes back");
    eventually("the old master is no replica", || role(old) == "slave");
    assert_eq!(role(new), "master");
}

#[test]
fn a_replica_is_promoted_while_the_master_runs() {
    let set = Sentinel::start(&Options::new(), 2).expect("it starts");
    set.sentinels()[0].freeze().expect("it runs");
    let old = set.master().expect("the other sentinels know it");
    let new = set.promote().expect("two sentinels are enough");
    assert_ne!(new.address(), old.address());
    new.command(&["SET", "key", "value"]).expect("it takes writes");
    eventually("the old master is no replica", || role(old) == "slave");
}
