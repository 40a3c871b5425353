//! Every sample of a post says what a user would expect. After a change that is meant, `UPDATE=1` writes the new ones.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use botmesh_testing::GraphProduct;

use crate::support::{Stage, Told, instagram, messenger, whatsapp};

fn here(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder)
}

fn render(told: &[Told]) -> String {
    let mut out = String::new();
    for told in told {
        let line = match told {
            Told::Event(inbound) => {
                format!("event {}", serde_json::to_string_pretty(inbound).expect("an event is JSON"))
            }
            Told::Sent(token, message) => format!("sent {token} as {message}"),
            Told::Poison(event, problem) => format!("poison {event}: {problem}"),
            Told::Notice(notice) => format!("notice {notice:#?}"),
            Told::Moved(moved) => {
                let at = moved.at.map(|at| at.as_millis());
                format!("moved {} to {} at {at:?}", moved.from, moved.to)
            }
        };
        writeln!(out, "{line}").expect("a string");
    }
    if out.is_empty() { "nothing\n".to_owned() } else { out }
}

fn files(folder: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(here("payloads").join(folder).join("webhooks")).expect("the samples");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no samples in {folder}");
    files
}

/// Posts a sample, and compares what comes of it with the snapshot of its name. Returns it if they differ.
async fn compare(stage: Stage, product: GraphProduct, folder: &str, file: &Path) -> Option<String> {
    let body = fs::read(file).expect("a sample");
    assert_eq!(stage.graph.post_bytes(product, &body).await, Some(200), "{}", file.display());
    let now = render(&stage.diary.take());
    let name = file.file_stem().and_then(|stem| stem.to_str()).expect("a name");
    let snapshots = here("snapshots").join(folder);
    let snapshot = snapshots.join(format!("{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(&snapshots).expect("a folder");
        fs::write(&snapshot, &now).expect("a snapshot");
    }
    let same = fs::read_to_string(&snapshot).ok().as_ref() == Some(&now);
    (!same).then(|| format!("{name}:\n{now}"))
}

#[tokio::test]
async fn the_samples_of_whatsapp_are_read() {
    let mut differ = Vec::new();
    for file in files("whatsapp_cloud") {
        let (stage, _channel) = whatsapp().await;
        differ.extend(compare(stage, GraphProduct::WhatsApp, "whatsapp_cloud", &file).await);
    }
    assert!(differ.is_empty(), "not as in the snapshots: {}", differ.join("\n"));
}

#[tokio::test]
async fn the_samples_of_messenger_are_read() {
    let mut differ = Vec::new();
    for file in files("messenger") {
        let (stage, _channel) = messenger().await;
        differ.extend(compare(stage, GraphProduct::Messenger, "messenger", &file).await);
    }
    assert!(differ.is_empty(), "not as in the snapshots: {}", differ.join("\n"));
}

#[tokio::test]
async fn the_samples_of_instagram_are_read() {
    let mut differ = Vec::new();
    for file in files("instagram") {
        let (stage, _channel) = instagram().await;
        differ.extend(compare(stage, GraphProduct::Instagram, "instagram", &file).await);
    }
    assert!(differ.is_empty(), "not as in the snapshots: {}", differ.join("\n"));
}
