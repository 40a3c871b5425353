//! A cluster whose slots move and whose masters die.

use std::sync::atomic::{AtomicBool, Ordering};

use botmesh_test_servers::{Cluster, Connection, Options, Redis, Reply, Result};

/// Sends a command where the cluster says, as a client does.
fn follow(node: &Redis, args: &[&str]) -> Result<Reply> {
    let mut answer = node.command(args);
    while let Err(error) = &answer {
        let text = error.to_string();
        let mut words = text.split(' ');
        let kind = words.next().unwrap_or_default();
        if !matches!(kind, "MOVED" | "ASK") {
            break;
        }
        let address = words.nth(1).and_then(|address| address.parse().ok()).expect("an address");
        let mut other = Connection::open(address)?;
        if kind == "ASK" {
            other.command(&["ASKING"])?;
        }
        answer = other.command(args);
    }
    answer
}

#[test]
fn a_slot_moves_under_load() {
    let cluster = Cluster::start(&Options::new(), 3, 0).expect("it starts");
    assert_eq!(cluster.url().matches("node=").count(), 2);
    let slot = cluster.slot_of("{chat}").expect("they answer");
    let from = cluster.owner_of(slot).expect("it has one");
    let to = cluster.nodes().iter().find(|node| node.address() != from.address()).expect("another");
    for number in 0..250 {
        from.command(&["SET", &format!("{{chat}}:{number}"), "value"]).expect("it is the owner");
    }
    let done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            while !done.load(Ordering::Relaxed) {
                let count = follow(from, &["INCR", "{chat}:count"]).expect("there is always an owner");
                written += 1;
                assert_eq!(count.int(), Some(written));
            }
            written
        });
        let half = cluster.begin_slot_move(slot, to).expect("both agree");
        let error = from.command(&["GET", "{chat}:none"]).expect_err("a missing key may be there already");
        assert!(error.to_string().starts_with("ASK"), "{error}");
        half.finish().expect("it moves");
        cluster.move_slot(slot, from).expect("it moves back");
        cluster.move_slot(slot, to).expect("and again");
        done.store(true, Ordering::Relaxed);
        writer.join().expect("no panic")
    });
    assert!(written > 0);
    assert_eq!(cluster.owner_of(slot).expect("it has one").address(), to.address());
    let count = to.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).expect("it answers");
    assert_eq!(count.int(), Some(251));
    let error = from.command(&["GET", "{chat}:1"]).expect_err("it is not here any more");
    assert!(error.to_string().starts_with("MOVED"), "{error}");
}

#[test]
fn a_slot_moves_to_and_fro_and_the_nodes_stay_of_one_mind() {
    let cluster = Cluster::start(&Options::new(), 2, 0).expect("it starts");
    let slot = cluster.slot_of("{chat}").expect("they answer");
    for _ in 0..200 {
        let from = cluster.owner_of(slot).expect("it has one").address();
        let to = cluster.nodes().iter().find(|node| node.address() != from).expect("another");
        cluster.move_slot(slot, to).expect("every node knows");
        assert_eq!(cluster.owner_of(slot).expect("it has one").address(), to.address());
    }
}

#[test]
fn a_dead_master_is_replaced_and_without_a_majority_nothing_is_served() {
    let cluster = Cluster::start(&Options::new().with_password("secret"), 3, 1).expect("it starts");
    let slot = cluster.slot_of("key").expect("they answer");
    let old = cluster.owner_of(slot).expect("it has one");
    let mut client = old.connection().expect("it accepts");
    client.command(&["SET", "key", "kept"]).expect("it writes");
    assert_eq!(client.command(&["WAIT", "1", "20000"]).expect("it waits").int(), Some(1));
    old.cut_replication().expect("it obeys");
    client.command(&["SET", "key", "lost"]).expect("it writes without its replica");

    let new = cluster.fail_over(old).expect("the replica takes over");
    assert_ne!(new.address(), old.address());
    assert_eq!(new.command(&["GET", "key"]).expect("it serves").text().as_deref(), Some("kept"));
    old.restart_empty().expect("it comes back as the node it was");
    cluster.wait_until_serving().expect("it has become a replica");
    assert_eq!(old.info("role"), Ok(Some("slave".into())));

    let others =
        cluster.nodes()[..3].iter().filter(|node| node.address() != old.address()).collect::<Vec<_>>();
    others[0].kill().expect("it is ours");
    others[1].freeze().expect("it is ours");
    cluster.wait_until_down().expect("one master of three is no majority");
    let error = new.command(&["GET", "key"]).expect_err("it must not serve");
    assert!(error.to_string().starts_with("CLUSTERDOWN"), "{error}");
    others[0].restart().expect("it comes back");
    others[1].thaw().expect("it is there");
    cluster.wait_until_serving().expect("the majority is back");
    assert_eq!(new.command(&["GET", "key"]).expect("it serves").text().as_deref(), Some("kept"));
}
