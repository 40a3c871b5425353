use fred::types::Resp3Frame;

use super::*;

fn bulk(text: &str) -> Resp3Frame {
    Resp3Frame::BlobString { data: text.to_owned().into(), attributes: None }
}

fn number(number: i64) -> Resp3Frame {
    Resp3Frame::Number { data: number, attributes: None }
}

fn array(data: Vec<Resp3Frame>) -> Resp3Frame {
    Resp3Frame::Array { data, attributes: None }
}

fn range(first: i64, last: i64, master: Vec<Resp3Frame>) -> Resp3Frame {
    array(vec![
        number(first),
        number(last),
        array(master),
        array(vec![bulk("10.0.0.9"), number(7), bulk("id9")]),
    ])
}

fn slots(ranges: Vec<Resp3Frame>) -> Slots {
    Slots::read(Reply::new(array(ranges)), "seed.example", None).unwrap()
}

fn owner(slots: &Slots, slot: u16) -> Option<String> {
    slots.owner(slot).map(ToString::to_string)
}

#[test]
fn every_slot_is_at_the_master_of_its_range() {
    let node = |host: &str, port| vec![bulk(host), number(port), bulk("id"), array(vec![])];
    let slots = slots(vec![range(0, 99, node("10.0.0.1", 6379)), range(100, 100, node("10.0.0.2", 6380))]);
    assert_eq!(owner(&slots, 0).as_deref(), Some("10.0.0.1:6379"));
    assert_eq!(owner(&slots, 99).as_deref(), Some("10.0.0.1:6379"));
    assert_eq!(owner(&slots, 100).as_deref(), Some("10.0.0.2:6380"));
    assert_eq!(owner(&slots, 101), None);
    assert_eq!(slots.masters().count(), 2);
}

#[test]
fn a_node_without_an_address_is_where_it_was_asked_and_a_name_goes_before_an_address() {
    let nameless = vec![Resp3Frame::Null, number(1), bulk("id"), array(vec![])];
    let named =
        vec![bulk("10.0.0.2"), number(2), bulk("id"), array(vec![bulk("hostname"), bulk("b.example")])];
    // As servers before version 7 answer.
    let old = vec![bulk("10.0.0.3"), number(3), bulk("id")];
    let slots = slots(vec![range(0, 0, nameless), range(1, 1, named), range(2, 2, old)]);
    assert_eq!(owner(&slots, 0).as_deref(), Some("seed.example:1"));
    assert_eq!(owner(&slots, 1).as_deref(), Some("b.example:2"));
    assert_eq!(owner(&slots, 2).as_deref(), Some("10.0.0.3:3"));
}

#[test]
fn a_redirection_leads_to_the_node_that_the_slots_know() {
    let named =
        vec![bulk("10.0.0.2"), number(2), bulk("id"), array(vec![bulk("hostname"), bulk("b.example")])];
    let mut slots = slots(vec![range(0, 9, named)]);
    let to = |text| Redirection::read(text).unwrap();
    let host = |slots: &Slots, text| slots.named(&to(text), "asked.example", None).to_string();
    assert_eq!(host(&slots, "MOVED 5 10.0.0.2:2"), "b.example:2");
    assert_eq!(host(&slots, "MOVED 5 10.0.0.7:7"), "10.0.0.7:7");
    assert_eq!(host(&slots, "MOVED 5 :7"), "asked.example:7");
    assert_eq!(host(&slots, "ASK 5 ::1:7"), "::1:7");
    assert!(to("ASK 5 10.0.0.7:7").asks && !to("MOVED 5 10.0.0.7:7").asks);
    let next = slots.named(&to("MOVED 5 10.0.0.7:7"), "asked.example", None);
    slots.move_to(5, &next);
    assert_eq!(owner(&slots, 5).as_deref(), Some("10.0.0.7:7"));
    assert_eq!(owner(&slots, 6).as_deref(), Some("b.example:2"));
    assert_eq!(slots.masters().map(ToString::to_string).collect::<Vec<_>>(), ["b.example:2", "10.0.0.7:7"]);
}

#[test]
fn what_is_no_redirection_is_none() {
    for text in ["ERR MOVED 1 a:1", "MOVED", "MOVED 1", "MOVED 1 a", "ASK 1 a:port", "TRYAGAIN later", ""] {
        assert_eq!(Redirection::read(text), None, "{text}");
    }
}

#[test]
fn an_answer_of_another_form_is_refused() {
    for ranges in [vec![number(1)], vec![array(vec![number(0)])], vec![range(0, 70_000, vec![])]] {
        assert!(Slots::read(Reply::new(array(ranges)), "seed", None).is_err());
    }
}
