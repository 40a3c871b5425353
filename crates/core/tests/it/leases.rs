//! Until when a process may act on what it owns: what others read, and what it knows by itself.

use std::time::Duration;

use botmesh_core::Bytes;
use botmesh_core::error::{LeaseLost, LeaseLostReason};
use botmesh_core::journal::{Beat, Journal, Leased, Leases, Owner};
use botmesh_core::scope::Scope;
use botmesh_core::time::Clock;
use serde_json::{Value, json};

use crate::journal_writes::Desk;

const SECOND: Duration = Duration::from_secs(1);

fn leases(messages: u64, sends: u64) -> Leases {
    Leases { messages: Duration::from_secs(messages), sends: Duration::from_secs(sends) }
}

async fn stored_session(desk: &Desk, instance: &str) -> Value {
    let kv = desk.kv.inner.scoped(&Scope::default().id());
    let entry = kv.get(&[Bytes::from(format!("s{instance}"))]).await.unwrap().remove(0).unwrap();
    serde_json::from_slice(&entry.value[16..]).unwrap()
}

fn lost(journal: &Journal, leased: Leased) -> Option<LeaseLostReason> {
    journal.lease().check(leased).err().map(|LeaseLost { reason }| reason)
}

/// Format 1, as every later version must read it.
#[tokio::test]
async fn a_stored_session_stays_readable() {
    let desk = Desk::new();
    let journal = desk.open_for("desk", leases(60, 60)).await;
    let epoch = journal.owner().epoch;
    let stored = json!({ "v": 1, "instance": "desk", "epoch": epoch, "expires": 1_060_000 });
    assert_eq!(stored_session(&desk, "desk").await, stored);
    let other = desk.open_for("other", leases(60, 15)).await;
    let epoch = other.owner().epoch;
    let with_both = json!({
        "v": 1, "instance": "other", "epoch": epoch, "expires": 1_060_000, "sends_expire": 1_015_000
    });
    assert_eq!(stored_session(&desk, "other").await, with_both);

    // Written before sends had a lease of their own, and by a later version that says more.
    let old = json!({ "v": 1, "instance": "old", "epoch": 7, "expires": 999_999, "added_later": true });
    desk.plant("sold", &serde_json::to_vec(&old).unwrap(), 21).await;
    let sessions = journal.sessions().await.unwrap();
    let owner = Owner { instance: "old".into(), epoch: 7 };
    assert!(sessions.has_lost(&owner, Leased::Messages) && sessions.has_lost(&owner, Leased::Sends));
    assert!(!sessions.is_dead(&other.owner()));
}

#[tokio::test]
async fn messages_and_sends_are_lost_each_at_their_own_time() {
    let desk = Desk::new();
    let (watching, silent) = (desk.open("watching").await, desk.open_for("silent", leases(30, 10)).await);
    for (rest, messages, sends) in [(9, false, false), (2, false, true), (20, true, true)] {
        desk.clock.sleep(rest * SECOND).await;
        assert_eq!(watching.beat().await.unwrap(), Beat::Alive);
        let sessions = watching.sessions().await.unwrap();
        let owner = silent.owner();
        let found = [Leased::Messages, Leased::Sends].map(|leased| sessions.has_lost(&owner, leased));
        assert_eq!(found, [messages, sends], "after {rest} more seconds");
        assert_eq!(sessions.is_dead(&owner), messages && sends);
        let removed = watching.remove_expired(&sessions).await.unwrap();
        assert_eq!(removed, usize::from(messages && sends), "removed while it still owned something");
    }
    assert_eq!(silent.beat().await.unwrap(), Beat::Expired);
    assert_eq!(lost(&silent, Leased::Messages), Some(LeaseLostReason::Expired));
}

#[tokio::test]
async fn a_process_knows_by_itself_when_its_lease_is_over() {
    let desk = Desk::new();
    let journal = desk.open_for("desk", leases(30, 10)).await;
    assert_eq!(journal.beat().await.unwrap(), Beat::Alive);
    desk.clock.sleep(Duration::from_millis(9_999)).await;
    assert_eq!((lost(&journal, Leased::Messages), lost(&journal, Leased::Sends)), (None, None));
    desk.clock.sleep(Duration::from_millis(1)).await;
    assert_eq!(lost(&journal, Leased::Messages), None);
    assert_eq!(lost(&journal, Leased::Sends), Some(LeaseLostReason::Expired));
    assert_eq!(journal.lease().lapses(), 0);

    assert_eq!(journal.beat().await.unwrap(), Beat::Alive);
    assert_eq!((lost(&journal, Leased::Sends), journal.lease().lapses()), (None, 1));
    // It meant to beat in 3 s and did not.
    journal.lease().rest(3 * SECOND);
    desk.clock.sleep(30 * SECOND).await;
    assert_eq!(lost(&journal, Leased::Messages), Some(LeaseLostReason::Stalled));
}

#[tokio::test]
async fn what_a_later_start_finds_out_ends_the_lease() {
    let desk = Desk::new();
    let first = desk.open("desk").await;
    let second = desk.open("desk").await;
    assert!(first.sessions().await.unwrap().is_superseded(&first.owner()));
    assert_eq!(lost(&first, Leased::Sends), Some(LeaseLostReason::Superseded));
    assert_eq!(lost(&second, Leased::Sends), None);
    first.end_session().await.unwrap();
    assert_eq!(second.beat().await.unwrap(), Beat::Alive);
}
