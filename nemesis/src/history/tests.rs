use std::fs;
use std::io::Write as _;

use super::*;

fn lost() -> Event {
    Event::Lost { sid: "a.0".into(), chat: None, call: None, n: None, reason: "expired".into() }
}

#[test]
fn what_was_recorded_is_read_in_the_order_of_time() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) =
        (Recorder::create(folder.path(), "one").unwrap(), Recorder::create(folder.path(), "two").unwrap());
    let events = [
        Event::EnterCall { chat: "x".into(), call: 1, after: None },
        Event::EnterOk { chat: "x".into(), call: 1, n: 1_764_450_000_000_001 },
        lost(),
        Event::Down { clean: true },
    ];
    for (number, event) in events.iter().enumerate() {
        let recorder = if number % 2 == 0 { &two } else { &one };
        recorder.record(event.clone());
    }
    let records = read(folder.path()).unwrap();
    assert_eq!(records.iter().map(|record| record.event.clone()).collect::<Vec<_>>(), events);
    assert!(records.is_sorted_by_key(|record| record.t));
    assert_eq!(records.iter().map(|r| r.replica.as_str()).collect::<Vec<_>>(), ["two", "one", "two", "one"]);
}

#[test]
fn the_line_that_a_killed_process_did_not_finish_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path(), "one").unwrap();
    recorder.record(lost());
    fs::OpenOptions::new().append(true).open(recorder.path()).unwrap().write_all(b"{\"t\":12,\"pi").unwrap();
    assert_eq!(read(folder.path()).unwrap().len(), 1);
}

#[test]
fn a_damaged_line_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path(), "one").unwrap();
    fs::write(recorder.path(), "{\"t\":12}\n").unwrap();
    recorder.record(lost());
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn a_line_is_as_the_readme_describes_it() {
    let event = Event::Nemesis {
        what: Fault::DropPushes,
        target: Some("a".into()),
        target_pid: None,
        detail: None,
        until_t: None,
    };
    let record = Record { t: 1, pid: 2, replica: "harness".into(), event };
    let line = r#"{"t":1,"pid":2,"replica":"harness","type":"nemesis","what":"drop_pushes","target":"a"}"#;
    assert_eq!(serde_json::to_string(&record).unwrap(), line);
    assert_eq!(serde_json::from_str::<Record>(line).unwrap(), record);
}
