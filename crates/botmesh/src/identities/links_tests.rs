use super::links::{Link, Links};
use crate::core::time::Timestamp;

fn link(id: &str, at: i64) -> Link {
    Link { id: id.into(), at: Timestamp::from_millis(at) }
}

#[test]
fn a_later_move_to_somewhere_else_replaces_a_link() {
    for (new, stored, replaces) in [
        (link("b", 2), link("a", 1), true),
        (link("b", 1), link("a", 1), false),
        (link("b", 1), link("a", 2), false),
        (link("a", 2), link("a", 1), false),
    ] {
        assert_eq!(new.replaces(&stored), replaces, "{new:?} in place of {stored:?}");
    }
}

#[test]
fn the_way_back_leads_into_the_past() {
    let links = Links { before: Some(link("a", 5)), now: None, holder: None };
    for (until, leads) in [(None, true), (Some(6), true), (Some(5), false), (Some(4), false)] {
        assert_eq!(links.owner_until(until.map(Timestamp::from_millis)).is_some(), leads, "until {until:?}");
    }
    assert_eq!(Links::default().owner_until(None), None);
}
