//! No server outlives the process that started it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use botmesh_test_servers::{Options, Redis};

use crate::eventually;

#[test]
#[ignore = "it is the process that the next test kills"]
fn child() {
    let running = Redis::start(&Options::new()).expect("it starts");
    let frozen = Redis::start(&Options::new()).expect("it starts");
    for redis in [&running, &frozen] {
        let folder = redis.command(&["CONFIG", "GET", "dir"]).expect("it answers").items()[1].text();
        let info = redis.command(&["INFO", "server"]).expect("it answers").text().expect("a text");
        let id = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("it tells");
        println!("server {id} {}", folder.expect("a path"));
    }
    frozen.freeze().expect("it runs");
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("it waits to be killed");
}

#[test]
fn servers_and_their_files_are_gone_after_their_process_was_killed() {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "survivors::child", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts again");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut servers = Vec::new();
    for line in output.lines().map(|line| line.expect("a line")).take_while(|line| line != "ready") {
        if let Some((id, folder)) = line.strip_prefix("server ").and_then(|rest| rest.split_once(' ')) {
            servers.push((format!("/proc/{id}"), folder.to_owned()));
        }
    }
    assert_eq!(servers.len(), 2);
    for (process, folder) in &servers {
        assert!(Path::new(process).exists() && Path::new(folder).exists(), "{process} {folder}");
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    eventually("the servers and their files are still there", || {
        servers.iter().all(|(process, folder)| !Path::new(process).exists() && !Path::new(folder).exists())
    });
}

#[test]
fn a_kill_takes_the_processes_that_write_its_files_too() {
    // In microseconds for each key: the process that writes the snapshot would take minutes.
    let redis =
        Redis::start(&Options::new().with_setting("rdb-key-save-delay", "1000000")).expect("it starts");
    let keys = (0..200).flat_map(|number| [number.to_string(), "value".into()]);
    let set = std::iter::once("MSET".to_owned()).chain(keys).collect::<Vec<_>>();
    redis.command(&set).expect("it writes");
    redis.command(&["BGSAVE"]).expect("it begins");
    let id = redis.info("process_id").expect("it answers").expect("it tells");
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("it runs");
    let child = format!("/proc/{}", children.trim());
    assert!(!children.trim().is_empty() && Path::new(&child).exists(), "{children}");
    // So that it cannot notice the end of its parent.
    let stopped =
        Command::new("kill").args(["-STOP", children.trim()]).status().expect("it can be sent signals");
    assert!(stopped.success());
    redis.kill().expect("it is ours");
    eventually("the writing process is still there", || !Path::new(&child).exists());
}
