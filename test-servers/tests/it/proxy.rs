//! A proxy and its faults, in front of a server that sends back what it gets.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use botmesh_test_servers::{Accept, Connection, Direction, End, Flow, Options, Proxy, Redis};

use crate::eventually;

const LONG: Duration = Duration::from_secs(20);
/// How long silence is listened to.
const SHORT: Duration = Duration::from_millis(100);

/// Sends back what comes, and tells of each connection that ended.
struct Echo {
    address: SocketAddr,
    ended: Receiver<()>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (ends, ended) = channel();
        let serve = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let ends = ends.clone();
                let echo = move || {
                    // An error is an end too.
                    drop(std::io::copy(&mut &stream, &mut &stream));
                    drop(stream);
                    ends.send(()).unwrap_or_default();
                };
                std::thread::Builder::new().spawn(echo).expect("a thread");
            }
        };
        std::thread::Builder::new().spawn(serve).expect("a thread");
        Self { address, ended }
    }
}

fn start() -> (Echo, Proxy) {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.address).expect("it starts");
    (echo, proxy)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).expect("it accepts");
    stream.set_read_timeout(Some(LONG)).expect("a bound");
    stream
}

fn send(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("it is open");
}

#[track_caller]
fn expect(mut stream: &TcpStream, text: &str) {
    let mut bytes = vec![0; text.len()];
    stream.read_exact(&mut bytes).expect("it arrives");
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

#[track_caller]
fn expect_silence(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(SHORT)).expect("a bound");
    let error = stream.read(&mut [0]).expect_err("neither bytes nor an end");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    stream.set_read_timeout(Some(LONG)).expect("a bound");
}

#[track_caller]
fn expect_end(mut stream: &TcpStream) {
    match stream.read(&mut [0]) {
        Ok(length) => assert_eq!(length, 0, "bytes instead of the end"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

#[test]
fn without_faults_everything_passes_and_is_counted() {
    let (echo, proxy) = start();
    let stream = connect(&proxy);
    let long = "0123456789".repeat(300_000);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&stream, &long));
        expect(&stream, &long);
    });
    let traffic = proxy.traffic();
    assert_eq!((traffic.accepted, traffic.open), (1, 1));
    assert_eq!((traffic.to_server, traffic.to_client), (3_000_000, 3_000_000));
    stream.shutdown(Shutdown::Write).expect("it is open");
    expect_end(&stream);
    echo.ended.recv_timeout(LONG).expect("the server saw the end");
    eventually("the connection is still counted", || proxy.traffic().open == 0);
}

#[test]
fn held_bytes_arrive_later_and_in_order() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (_echo, proxy) = start();
        let stream = connect(&proxy);
        send(&stream, "before ");
        expect(&stream, "before ");
        proxy.set(direction, Flow::Hold);
        send(&stream, "held ");
        stream.shutdown(Shutdown::Write).expect("it is open");
        expect_silence(&stream);
        proxy.heal();
        expect(&stream, "held ");
        expect_end(&stream);
    }
}

#[test]
fn what_is_dropped_never_comes_and_the_connection_stays_silent() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (_echo, proxy) = start();
        let (stream, other) = (connect(&proxy), connect(&proxy));
        proxy.set(direction, Flow::Drop);
        send(&stream, "lost");
        expect_silence(&stream);
        proxy.heal();
        send(&stream, "not after a hole");
        expect_silence(&stream);
        send(&other, "nothing was lost here");
        expect(&other, "nothing was lost here");
        proxy.cut();
        expect_end(&stream);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "delays are of real time")]
fn delayed_bytes_arrive_in_order_and_not_before_their_time() {
    let (_echo, proxy) = start();
    let stream = connect(&proxy);
    let delay = Duration::from_millis(300);
    proxy.set(Direction::ToClient, Flow::Delay(delay));
    let start = Instant::now();
    let mut sent = String::new();
    for number in 0..50 {
        send(&stream, &format!("{number} "));
        sent += &format!("{number} ");
    }
    expect(&stream, &sent);
    assert!(start.elapsed() >= delay);
}

#[test]
fn a_cut_is_seen_at_both_ends_and_the_next_connection_is_fine() {
    let (echo, proxy) = start();
    let stream = connect(&proxy);
    send(&stream, "x");
    expect(&stream, "x");
    proxy.cut();
    expect_end(&stream);
    echo.ended.recv_timeout(LONG).expect("the server saw the end");
    let stream = connect(&proxy);
    send(&stream, "again");
    expect(&stream, "again");
    assert_eq!(proxy.traffic().accepted, 2);
}

#[test]
fn half_open_connections_are_closed_at_one_end_only() {
    let (echo, proxy) = start();
    let stream = connect(&proxy);
    send(&stream, "x");
    expect(&stream, "x");
    proxy.half_open(End::Server);
    echo.ended.recv_timeout(LONG).expect("the server saw the end");
    send(&stream, "anybody there?");
    expect_silence(&stream);

    let (echo, proxy) = start();
    let stream = connect(&proxy);
    send(&stream, "x");
    expect(&stream, "x");
    proxy.half_open(End::Client);
    expect_end(&stream);
    drop(stream);
    assert!(echo.ended.recv_timeout(SHORT).is_err(), "the server believes that its client is there");
    drop(proxy);
    echo.ended.recv_timeout(LONG).expect("until the proxy goes");
}

#[test]
fn new_connections_are_closed_or_left_in_silence() {
    let (echo, proxy) = start();
    proxy.set_accept(Accept::Close);
    expect_end(&connect(&proxy));
    proxy.set_accept(Accept::Silent);
    let stream = connect(&proxy);
    send(&stream, "x");
    expect_silence(&stream);
    proxy.cut();
    expect_end(&stream);
    assert!(echo.ended.try_recv().is_err(), "the server saw none of them");
    proxy.heal();
    let stream = connect(&proxy);
    send(&stream, "x");
    expect(&stream, "x");
}

#[test]
fn without_a_server_connections_end_and_another_can_take_its_place() {
    let redis = Redis::start(&Options::new()).expect("it starts");
    let proxy = Proxy::start(redis.address()).expect("it starts");
    redis.kill().expect("it is ours");
    expect_end(&connect(&proxy));
    let echo = Echo::start();
    proxy.set_upstream(echo.address);
    let stream = connect(&proxy);
    send(&stream, "elsewhere");
    expect(&stream, "elsewhere");
}

#[test]
fn lost_replies_belong_to_requests_that_were_carried_out() {
    let redis = Redis::start(&Options::new()).expect("it starts");
    let proxy = Proxy::start(redis.address()).expect("it starts");
    let open = || Connection::open(proxy.address()).expect("it accepts");
    proxy.lose_replies("INCR", 2);
    for _ in 0..2 {
        let mut connection = open();
        connection.command(&["PING"]).expect("other replies arrive");
        let error = connection.command(&["INCR", "counter"]).expect_err("the reply is lost");
        assert!(error.to_string().contains("closed the connection"), "{error}");
    }
    assert_eq!(redis.command(&["GET", "counter"]).expect("it answers").text().as_deref(), Some("2"));
    let reply = open().command(&["INCR", "counter"]).expect("the third arrives");
    assert_eq!(reply.int(), Some(3));
    assert_eq!(proxy.traffic().replies_lost, 2);
    assert_eq!(redis.url_at(proxy.address()), format!("redis://{}", proxy.address()));
}

#[test]
fn a_request_in_two_pieces_is_recognised() {
    let redis = Redis::start(&Options::new()).expect("it starts");
    let proxy = Proxy::start(redis.address()).expect("it starts");
    proxy.lose_replies("INCR counter", 1);
    let stream = connect(&proxy);
    send(&stream, "PING\r\nINCR co");
    expect(&stream, "+PONG\r\n");
    send(&stream, "unter\r\n");
    expect_end(&stream);
    assert_eq!(redis.command(&["GET", "counter"]).expect("it answers").text().as_deref(), Some("1"));
}

#[test]
fn pushes_are_dropped_while_replies_arrive() {
    let redis = Redis::start(&Options::new()).expect("it starts");
    let proxy = Proxy::start_for_redis(redis.address()).expect("it starts");
    let publish = |text: &str| redis.command(&["PUBLISH", "news", text]).expect("it answers").int();
    let subscriber = connect(&proxy);
    send(&subscriber, "SUBSCRIBE news\r\n");
    expect(&subscriber, "*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    assert_eq!(publish("one"), Some(1));
    expect(&subscriber, "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\none\r\n");
    proxy.drop_pushes(true).expect("it knows the protocol");
    assert_eq!(publish("two"), Some(1));
    send(&subscriber, "PING\r\n");
    expect(&subscriber, "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    assert_eq!(proxy.traffic().pushes_lost, 1);
    proxy.heal();
    assert_eq!(publish("three"), Some(1));
    expect(&subscriber, "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nthree\r\n");
    let other = Proxy::start(redis.address()).expect("it starts");
    other.drop_pushes(true).expect_err("it does not know the protocol");
}

#[test]
fn requests_are_answered_in_place_of_the_server_and_in_their_order() {
    let redis = Redis::start(&Options::new()).expect("it starts");
    let proxy = Proxy::start_for_redis(redis.address()).expect("it starts");
    let stream = connect(&proxy);
    let incr = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
    let mut requests = String::new();
    for number in 0..500 {
        requests += &format!("{incr}*2\r\n$4\r\nECHO\r\n$3\r\n{number:03}\r\n");
    }
    proxy.answer("ECHO", "-ERR not now\r\n", 300).expect("it knows the protocol");
    std::thread::scope(|scope| {
        scope.spawn(|| send(&stream, &requests));
        for number in 0..500 {
            expect(&stream, &format!(":{}\r\n", number + 1));
            if number < 300 {
                expect(&stream, "-ERR not now\r\n");
            } else {
                expect(&stream, &format!("$3\r\n{number:03}\r\n"));
            }
        }
    });
    assert_eq!(proxy.traffic().answered, 300);
    proxy.answer("INCR", "+no\r\n", usize::MAX).expect("it knows the protocol");
    send(&stream, incr);
    expect(&stream, "+no\r\n");
    proxy.heal();
    send(&stream, incr);
    expect(&stream, ":501\r\n");
    let other = Proxy::start(redis.address()).expect("it starts");
    other.answer("INCR", "+no\r\n", 1).expect_err("it does not know the protocol");
}
