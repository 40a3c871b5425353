//! One server, and what can be done to it.

use std::collections::HashSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use botmesh_test_servers::{Options, Persistence, Redis, Reply};

fn text(redis: &Redis, key: &str) -> Option<String> {
    redis.command(&["GET", key]).expect("the server answers").text()
}

fn set(redis: &Redis, key: &str, value: &str) {
    redis.command(&["SET", key, value]).expect("the server writes");
}

#[test]
fn a_server_answers_at_its_url() {
    let redis = Redis::start(&Options::new()).expect("it starts");
    assert_eq!(redis.url(), format!("redis://{}", redis.address()));
    set(&redis, "key", "value");
    assert_eq!(text(&redis, "key").as_deref(), Some("value"));
    assert_eq!(redis.command(&["GET", "none"]), Ok(Reply::Nil));
    let all = redis.command(&["LRANGE", "none", "0", "-1"]).expect("it answers");
    assert_eq!(all, Reply::Array(Vec::new()));
    let error = redis.command(&["INCR", "key"]).expect_err("it is no number");
    assert!(error.to_string().starts_with("ERR value is not an integer"), "{error}");
}

#[test]
fn a_killed_server_comes_back_from_its_files_on_the_same_port() {
    let redis = Redis::start(&Options::new().with_persistence(Persistence::Always)).expect("it starts");
    let url = redis.url().to_owned();
    set(&redis, "key", "kept");
    redis.kill().expect("it is ours");
    assert!(TcpStream::connect(redis.address()).is_err(), "nothing listens any more");
    redis.restart().expect("it starts again");
    assert_eq!(text(&redis, "key").as_deref(), Some("kept"));
    assert_eq!(redis.url(), url);
    redis.restart_empty().expect("it starts empty");
    assert_eq!(text(&redis, "key"), None);
    set(&redis, "key", "new");
    redis.restart().expect("it starts again");
    assert_eq!(text(&redis, "key").as_deref(), Some("new"));
}

#[test]
fn a_server_that_goes_back_to_its_earlier_files_has_lost_what_came_after() {
    for persistence in [Persistence::EverySecond, Persistence::Always] {
        let redis = Redis::start(&Options::new().with_persistence(persistence)).expect("it starts");
        set(&redis, "key", "before");
        let files = redis.files().expect("they are ours");
        set(&redis, "key", "after");
        redis.restart_from(&files).expect("it starts again");
        assert_eq!(text(&redis, "key").as_deref(), Some("before"));
        set(&redis, "key", "again");
        redis.restart().expect("it starts again");
        assert_eq!(text(&redis, "key").as_deref(), Some("again"));
    }
}

#[test]
fn without_persistence_a_restart_loses_everything() {
    let redis = Redis::start(&Options::new()).expect("it starts");
    set(&redis, "key", "lost");
    redis.restart().expect("it starts again");
    assert_eq!(text(&redis, "key"), None);
}

#[test]
fn a_frozen_server_accepts_and_is_silent_until_it_thaws() {
    let redis = Redis::start(&Options::new()).expect("it starts");
    redis.freeze().expect("it runs");
    let mut stream = TcpStream::connect(redis.address()).expect("the system still accepts");
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a bound");
    stream.write_all(b"PING\r\n").expect("the system takes it");
    let mut answer = [0; 7];
    let error = stream.read(&mut answer).expect_err("there is no answer");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    redis.thaw().expect("it is there");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound");
    stream.read_exact(&mut answer).expect("it answers after all");
    assert_eq!(&answer, b"+PONG\r\n");
    redis.freeze().expect("it runs");
    redis.kill().expect("a frozen server can be killed");
    let error = redis.thaw().expect_err("there is nothing to thaw");
    assert!(error.to_string().contains("it does not run"), "{error}");
}

#[test]
fn options_reach_the_server() {
    let options = Options::new()
        .with_password("s3cret \"word\\")
        .with_user("bot", "p@ss", "~botmesh:* &* +@all -@dangerous")
        .with_max_memory(8 << 20, "allkeys-lru");
    let redis = Redis::start(&options).expect("it starts");
    assert_eq!(redis.url(), format!("redis://bot:p%40ss@{}", redis.address()));
    let policy = redis.command(&["CONFIG", "GET", "maxmemory-policy"]).expect("the owner may do all");
    assert_eq!(policy.items()[1].text().as_deref(), Some("allkeys-lru"));
    let mut bot = redis.connection().expect("it accepts");
    bot.command(&["AUTH", "bot", "p@ss"]).expect("the password is right");
    let error = bot.command(&["SET", "other:key", "value"]).expect_err("not its key");
    assert!(error.to_string().starts_with("NOPERM"), "{error}");
    bot.command(&["SET", "botmesh:key", "value"]).expect("its own key");
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    let error =
        Redis::start(&Options::new().with_setting("no-such-setting", "1")).err().expect("it cannot start");
    let error = error.to_string();
    assert!(error.contains("the server ended (exit status: 1)"), "{error}");
    assert!(error.contains("Bad directive"), "{error}");
}

#[test]
fn many_starts_at_once_do_not_collide() {
    let servers = std::thread::scope(|scope| {
        let starts = (0..12).map(|_| scope.spawn(|| Redis::start(&Options::new()))).collect::<Vec<_>>();
        starts
            .into_iter()
            .map(|start| start.join().expect("no panic").expect("it starts"))
            .collect::<Vec<_>>()
    });
    let addresses = servers.iter().map(Redis::address).collect::<HashSet<_>>();
    assert_eq!(addresses.len(), servers.len());
    for (number, redis) in servers.iter().enumerate() {
        set(redis, "number", &number.to_string());
    }
    for (number, redis) in servers.iter().enumerate() {
        assert_eq!(text(redis, "number"), Some(number.to_string()));
    }
}
