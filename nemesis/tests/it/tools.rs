//! Words for the tests.

use std::fs;
use std::path::Path;
use std::time::Duration;

use botmesh_nemesis::history::{Event, Record};
use botmesh_nemesis::replica::Mode;
use botmesh_nemesis::world::{Options, World};

pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// Replicas of one chat that takes turns of it without a rest.
pub(crate) fn bare(name: &str, replicas: usize, args: &[&str]) -> World {
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    world(Options { replicas, chats: 1, args, ..options(name) })
}

/// Replicas of a bot whose channel permits one connection.
pub(crate) fn bots(name: &str, replicas: usize, args: &[&str]) -> World {
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    world(Options { replicas, mode: Mode::Bot, args, ..options(name) })
}

pub(crate) fn options(name: &str) -> Options {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nemesis").join(name);
    Options { lease: LEASE, ..Options::new(env!("CARGO_BIN_EXE_nemesis-replica"), folder, 1) }
}

pub(crate) fn world(options: Options) -> World {
    let world = World::new(options).unwrap();
    world.start_all().unwrap();
    world
}

/// Ends a test: what is owed is done, and no promise was broken. If one was, the history stays.
pub(crate) fn conclude(world: &World) {
    let folder = world.folder().display();
    world.conclude(LEASE).unwrap_or_else(|error| panic!("{error}; the histories are in {folder}"));
    let summary = world.verdict().unwrap_or_else(|error| panic!("{error}\nthe histories are in {folder}"));
    println!("{summary}");
    fs::remove_dir_all(world.folder()).unwrap();
}

pub(crate) fn until(world: &World, what: &str, holds: impl FnMut(&World) -> bool) {
    let folder = world.folder().display();
    world.until(what, holds).unwrap_or_else(|error| panic!("{error}; the histories are in {folder}"));
}

/// Who wrote to the chat last, and under which fence.
pub(crate) fn writer(world: &World) -> Option<(usize, u64)> {
    let last = world.provider.last("chat0")?;
    Some((number(&last.replica), last.n))
}

pub(crate) fn number(replica: &str) -> usize {
    replica.trim_start_matches('r').parse().unwrap()
}

/// Waits until a replica writes to the chat for the first time in a turn.
pub(crate) fn until_written(world: &World, what: &str, by: impl Fn(usize) -> bool) -> (usize, u64) {
    let before = writer(world).map(|(_, fence)| fence);
    let mut found = None;
    until(world, what, |world| {
        found = writer(world).filter(|(number, fence)| Some(*fence) != before && by(*number));
        found.is_some()
    });
    found.unwrap()
}

/// The events of a replica's process, in their order.
pub(crate) fn of_process(records: &[Record], pid: u32) -> impl Iterator<Item = &Record> {
    records.iter().filter(move |record| record.pid == pid)
}

/// The leader to which the channel is connected.
pub(crate) fn until_connected(world: &World, what: &str, is_it: impl Fn(usize) -> bool) -> usize {
    let mut found = None;
    until(world, what, |world| {
        found = world.provider.connected().map(|name| number(&name)).filter(|number| is_it(*number));
        found.is_some()
    });
    found.unwrap()
}

/// A message more in one of the chats, and a look at whether everything was answered.
pub(crate) fn answered(world: &World) -> bool {
    let (said, taken, replies) = world.provider.messages();
    said == taken && said == replies
}

/// Says something in each of 20 chats.
pub(crate) fn say(world: &World) {
    for chat in 0..20 {
        world.provider.say(&format!("chat{chat}"));
    }
}

pub(crate) fn frames_of(records: &[Record], pid: u32) -> Vec<&Record> {
    of_process(records, pid).filter(|record| matches!(record.event, Event::Frame { .. })).collect()
}

/// A number from the environment, for those who want more.
pub(crate) fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|times| times.parse().ok()).unwrap_or(usual)
}
