//! The examples as processes.

mod reminder;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let profile =
        test.parent().and_then(Path::parent).expect("the test lies in `deps` of the profile's folder");
    let example = profile.join("examples").join(name);
    assert!(example.exists(), "the example is missing; build it with `cargo build -p botmesh --examples`");
    example
}

/// An example that reads what the test types.
pub(crate) struct Typed(pub(crate) Child);

impl Typed {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Self {
        let child = Command::new(example(name))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an example that starts");
        Self(child)
    }

    fn line(&mut self, lines: &mut impl BufRead, wanted: &str) -> String {
        loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line).expect("its output");
            assert!(read > 0, "it ended before it said {wanted:?}");
            if line.contains(wanted) {
                return line.trim().to_owned();
            }
        }
    }

    pub(crate) fn types(&mut self, text: &str) {
        let input = self.0.stdin.as_mut().expect("its input");
        input.write_all(text.as_bytes()).expect("it reads");
        input.flush().expect("it reads");
    }
}

impl Drop for Typed {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prometheus_scrapes_every_number() {
    let mut example = Typed::start("prometheus", &["127.0.0.1:0"]);
    let mut output = BufReader::new(example.0.stdout.take().expect("its output"));
    let address = example.line(&mut output, "http://");
    let address = address.trim_start_matches("http://").trim_end_matches("/metrics").to_owned();
    example.types("hello\n");
    example.line(&mut output, "You said: hello");
    let expected = [
        "# TYPE botmesh_inbound_journaled_total counter",
        "# HELP botmesh_inbound_journaled_total Inbound events written to the inbox.",
        "botmesh_inbound_journaled_total{bot=\"s/default/default/example/default\"} 1",
        "botmesh_outbox_journaled_total{bot=\"s/default/default/example/default\"} 1",
        "botmesh_inbound_dead_total{bot=\"s/default/default/example/default\"} 0",
        "# TYPE botmesh_durable_wait_seconds histogram",
        "botmesh_durable_wait_seconds_count{bot=\"s/default/default/example/default\"} 1",
        "botmesh_ambiguous_window_seconds_count{bot=\"s/default/default/example/default\"} 1",
        "botmesh_handling_seconds_bucket{bot=\"s/default/default/example/default\",le=\"+Inf\"} 1",
    ];
    // That the message is done follows the reply.
    let mut missing = Vec::new();
    let scraped = std::iter::repeat_with(|| {
        let mut connection = TcpStream::connect(&address).expect("it listens");
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        answer
    });
    let complete = |answer: &String| {
        missing = expected.iter().filter(|line| !answer.contains(**line)).collect();
        missing.is_empty()
    };
    let found = scraped.take(10_000).find(complete);
    let answer = found.unwrap_or_else(|| panic!("never scraped: {missing:?}"));
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let counters =
        answer.lines().filter(|line| line.starts_with("# TYPE") && line.ends_with("_total counter"));
    assert!(counters.count() >= 13, "{answer}");
}

#[test]
fn opentelemetry_gets_a_span_for_each_message_with_its_sends() {
    let mut example = Typed::start("opentelemetry", &[]);
    example.types("hello\n");
    drop(example.0.stdin.take());
    let mut output = String::new();
    example.0.stdout.take().expect("its output").read_to_string(&mut output).expect("its output");
    assert!(example.0.wait().expect("an end").success(), "{output}");
    for part in ["You said: hello", "message", "send", "record", "m/you/", "chat"] {
        assert!(output.contains(part), "{part} is not in\n{output}");
    }
}
