//! The recipes in `deploy/`, as far as they can be followed without what they are for.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use botmesh::TurnsConfig;
use botmesh::core::time::{Clock, SystemClock};
use botmesh_test_servers::{Options, Redis};

use crate::child::{PATIENCE, built};

const RECIPES: [&str; 6] = [
    "Dockerfile",
    "compose.yaml",
    "kubernetes/bot.yaml",
    "kubernetes/redis.yaml",
    "systemd/bot@.service",
    "systemd/bot.env",
];

fn recipe(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn service() -> PathBuf {
    built("service")
}

/// What a recipe sets a name to, in any of its formats.
fn setting<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name)).expect(name);
    line.trim_start_matches([':', '=', ' ']).trim_end_matches('s')
}

#[test]
fn every_recipe_gives_a_replica_more_time_to_stop_than_it_takes() {
    let longest = TurnsConfig::default().stop_timeout.as_secs();
    for (name, field) in [
        ("compose.yaml", "stop_grace_period"),
        ("kubernetes/bot.yaml", "terminationGracePeriodSeconds"),
        ("systemd/bot@.service", "TimeoutStopSec"),
    ] {
        let grace: u64 = setting(&recipe(name), field).parse().expect(field);
        assert!(grace >= longest + 10, "{name}: {grace} s of {field}, and a stop may take {longest} s");
    }
}

#[test]
fn the_program_knows_every_setting_of_the_recipes() {
    let help = Command::new(service()).arg("--help").output().expect("the service runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let mut found = 0;
    for name in RECIPES {
        let text = recipe(name);
        let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for variable in names.filter(|word| word.starts_with("BOT_")) {
            found += 1;
            assert!(
                help.contains(&format!("[env: {variable}")),
                "{name} sets {variable}; there is only\n{help}"
            );
        }
    }
    assert!(found > 8, "only {found} settings were found");
}

/// A replica as the unit of systemd starts it.
struct Replica {
    child: Child,
    address: SocketAddr,
    answers: mpsc::Receiver<String>,
}

impl Replica {
    fn start(number: u32, redis: &Redis, address: SocketAddr) -> Self {
        let unit = recipe("systemd/bot@.service");
        let mut command = Command::new(service());
        for line in unit.lines().filter_map(|line| line.strip_prefix("Environment=")) {
            for (name, value) in line.split(' ').filter_map(|pair| pair.split_once('=')) {
                command.env(name, value.replace("%H", "host").replace("%i", &number.to_string()));
            }
        }
        let listens = command.get_envs().any(|(name, value)| {
            name == "BOT_LISTEN" && value.is_some_and(|value| *value == *format!("127.0.0.1:808{number}"))
        });
        assert!(listens, "the unit does not say where replica {number} listens");
        // The one of the unit may be in use here.
        command.env("BOT_LISTEN", address.to_string()).env("BOT_REDIS", redis.url());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the service starts");
        let (tell, answers) = mpsc::channel();
        let printed = BufReader::new(child.stdout.take().expect("its output"));
        let listen = move || printed.lines().map_while(Result::ok).try_for_each(|line| tell.send(line));
        std::thread::Builder::new().spawn(listen).expect("a thread");
        let replica = Self { child, address, answers };
        replica.until("/ready", "200");
        replica
    }

    /// The status of an answer; empty if nobody answers.
    fn request(&self, head: &str, body: &str) -> String {
        let exchange = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let length = body.len();
            write!(
                stream,
                "{head} HTTP/1.1\r\nHost: bot\r\nConnection: close\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = exchange().unwrap_or_default();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    fn until(&self, path: &str, status: &str) {
        let clock = SystemClock::new();
        while self.request(&format!("GET {path}"), "") != status {
            assert!(clock.monotonic() < PATIENCE, "{path} never answered {status}");
            std::thread::yield_now();
        }
    }

    fn post(&self, id: &str, text: &str) -> String {
        let body = format!("{{\"id\": \"{id}\", \"chat\": \"ana\", \"text\": \"{text}\"}}");
        self.request("POST /messages", &body)
    }

    fn hears(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("an answer")
    }

    /// As systemd, Kubernetes and Docker stop it.
    fn stop(mut self) {
        let asked =
            Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("kill");
        assert!(asked.success());
        let (tell, ended) = mpsc::channel();
        std::thread::Builder::new().spawn(move || tell.send(self.child.wait())).expect("a thread");
        let grace = setting(&recipe("systemd/bot@.service"), "TimeoutStopSec").parse().expect("a number");
        let status =
            ended.recv_timeout(Duration::from_secs(grace)).expect("it stops in time").expect("it ran");
        assert!(status.success(), "{status}");
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

#[test]
fn replicas_of_the_unit_are_replaced_one_by_one_and_a_conversation_goes_on() {
    let redis = Redis::start(&Options::new()).expect("a server");
    let (first, second) = (free_address(), free_address());
    let one = Replica::start(1, &redis, first);
    assert_eq!(one.request("GET /live", ""), "200");
    assert_eq!(one.post("1", "order"), "200");
    assert!(one.hears().contains("What would you like"));
    assert_eq!(one.post("1", "order"), "200", "given again, and known");
    assert_eq!(one.request("POST /messages", "{"), "400");
    assert_eq!(one.request("POST /messages", "{\"id\": \"\", \"chat\": \"ana\", \"text\": \"x\"}"), "422");

    let two = Replica::start(2, &redis, second);
    assert_eq!(two.post("2", "soup"), "200");
    assert!(two.hears().contains("To which table"));
    one.stop();
    assert_eq!(two.post("3", "four"), "200");
    assert!(two.hears().contains("Its number"));
    let one = Replica::start(1, &redis, first);
    two.stop();
    assert_eq!(one.post("4", "4"), "200");
    assert!(one.hears().contains("soup to table 4. It is your order number 1"));
    one.stop();
}
