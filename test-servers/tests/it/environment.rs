//! Where a server comes from. The environment is that of a process, so each case is one of its own.

use std::process::{Command, Output};

use botmesh_test_servers::{Options, REDIS_URL, Redis};

fn run(case: &str, name: &str, value: &str) -> Output {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("environment::{case}"), "--ignored"])
        .env(name, value)
        .output()
        .expect("it starts again")
}

#[track_caller]
fn expect_success(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "it is the process that the next test starts"]
fn with_a_url() {
    let redis = Redis::from_env_or_start().expect("it is there");
    redis.command(&["SET", "from", "the child"]).expect("the password is right");
    for error in [redis.kill(), redis.freeze(), redis.restart(), redis.restart_empty()] {
        let error = error.expect_err("it is not ours").to_string();
        assert!(error.contains("it was given by BOTMESH_REDIS_URL"), "{error}");
    }
    drop(redis);
    let own = Redis::start(&Options::new()).expect("one of our own");
    assert_ne!(std::env::var(REDIS_URL).as_deref(), Ok(own.url()));
}

#[test]
fn a_given_server_is_used_and_not_harmed() {
    let redis =
        Redis::start(&Options::new().with_user("bot", "p@ss/word", "~* &* +@all")).expect("it starts");
    expect_success(&run("with_a_url", REDIS_URL, &format!("{}/0", redis.url())));
    assert_eq!(redis.command(&["GET", "from"]).expect("it lives").text().as_deref(), Some("the child"));
}

#[test]
#[ignore = "it is the process that the next test starts"]
fn with_a_bad_url() {
    let error = Redis::from_env_or_start().err().expect("it cannot be used").to_string();
    assert!(error.starts_with("BOTMESH_REDIS_URL is not redis://"), "{error}");
}

#[test]
fn a_url_that_cannot_be_read_is_refused_by_name() {
    expect_success(&run("with_a_bad_url", REDIS_URL, "rediss://127.0.0.1:6379"));
    expect_success(&run("with_a_bad_url", REDIS_URL, "redis://secret@127.0.0.1:6379"));
}

#[test]
#[ignore = "it is the process that the next test starts"]
fn without_a_program() {
    let error = Redis::start(&Options::new()).err().expect("there is none").to_string();
    for way in ["apt-get install redis-server", "PATH", REDIS_URL, "--allow-missing redis"] {
        assert!(error.contains(way), "{way}: {error}");
    }
    assert_eq!(Redis::available().map_err(|error| error.to_string()), Err(error));
}

#[test]
fn without_a_program_the_error_names_the_ways_to_provide_it() {
    expect_success(&run("without_a_program", "PATH", "/nowhere"));
}
