//! Every update of the corpus, read and compared with what was found right by eye. `BOTMESH_BLESS=1` writes anew what is
//! read now, to be looked at.

use std::fs;
use std::path::{Path, PathBuf};

use botmesh_telegram::parse_update;
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// The updates of a file: one, or a list.
fn updates(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a payload");
    match serde_json::from_str(&text).expect("JSON") {
        Value::Array(updates) => updates,
        update => vec![update],
    }
}

fn read(update: &Value) -> Value {
    let update = parse_update(update.to_string().as_bytes());
    let mut shown = json!({ "id": update.id });
    match &update.content {
        Ok(inbound) => shown["inbound"] = serde_json::to_value(inbound).expect("JSON"),
        Err(problem) => shown["problem"] = problem.as_str().into(),
    }
    if let Some(query) = update.callback_query {
        shown["callback_query"] = query.into();
    }
    if update.automatic_forward {
        shown["automatic_forward"] = true.into();
    }
    if let Some((from, to)) = update.migrated {
        shown["migrated"] = json!([from, to]);
    }
    shown
}

#[test]
fn every_update_of_the_corpus_is_read_as_its_snapshot_says() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for entry in fs::read_dir(folder("payloads/updates")).expect("the corpus") {
        let path = entry.expect("an entry").path();
        let read: Vec<Value> = updates(&path).iter().map(read).collect();
        let text = serde_json::to_string_pretty(&read).expect("JSON") + "\n";
        let snapshot = folder("snapshots").join(path.file_name().expect("a name"));
        seen += 1;
        if std::env::var_os("BOTMESH_BLESS").is_some() {
            fs::write(&snapshot, text).expect("a snapshot");
        } else if fs::read_to_string(&snapshot).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", path.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "read otherwise than its snapshot says (BOTMESH_BLESS=1 writes it):\n{}",
        wrong.join("\n")
    );
    assert!(seen >= 21, "{seen} payloads");
}
