use botmesh_core::error::{Effect, StoreErrorKind as Kind};
use fred::error::{Error, ErrorKind};

use super::{Access, answered, failed};

#[test]
fn answers_of_the_server_have_a_kind_and_no_effect() {
    let table = [
        ("LOADING Redis is loading the dataset in memory", Kind::Unavailable),
        (
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            Kind::Unavailable,
        ),
        ("CLUSTERDOWN The cluster is down", Kind::Unavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Kind::Unavailable),
        ("BUSY Redis is busy running a script.", Kind::Unavailable),
        ("NOREPLICAS Not enough good replicas to write.", Kind::Unavailable),
        ("MISCONF Redis is configured to save RDB snapshots", Kind::Unavailable),
        (
            "READONLY You can't write against a read only replica. script: abc, on @user_script:74.",
            Kind::Unavailable,
        ),
        ("ERR max number of clients reached", Kind::Unavailable),
        (
            "OOM command not allowed when used memory > 'maxmemory'. script: abc, on @user_script:118.",
            Kind::Full,
        ),
        (
            "ERR Error running script (call to f_abc): @user_script:118: -OOM command not allowed when used memory > 'maxmemory'.",
            Kind::Full,
        ),
        (
            "ERR Error running script (call to f_abc): @user_script: 12: @user_script: 12: -OOM command not allowed",
            Kind::Full,
        ),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Kind::Incompatible),
        (
            "ERR Error running script (call to f_abc): @user_script:9: WRONGTYPE Operation against a key",
            Kind::Incompatible,
        ),
        ("DAMAGED an entry has no version", Kind::Corrupt),
        ("MOVED 3999 127.0.0.1:6381", Kind::Misuse),
        ("CROSSSLOT Keys in request don't hash to the same slot", Kind::Misuse),
        ("ERR unknown command 'EVALSHA', with args beginning with:", Kind::Incompatible),
    ];
    for (text, kind) in table {
        let error = answered("commit", "host:1", Access::Write, text);
        assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{text}");
        let retry = matches!(kind, Kind::Unavailable | Kind::Full);
        assert_eq!(error.retry(), retry, "{text}");
        assert!(error.to_string().starts_with("redis commit: host:1: "), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn what_may_stop_a_script_half_way_is_of_unknown_effect() {
    for text in [
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "ERR The user executing the script can't run this command or subcommand script: abc, on @user_script:118.",
        "NOAUTH Authentication required.",
    ] {
        let error = answered("commit", "host:1", Access::Write, text);
        assert_eq!((error.kind(), error.effect()), (Kind::Denied, Effect::Unknown), "{text}");
        assert_eq!(answered("get", "host:1", Access::Read, text).effect(), Effect::None, "{text}");
    }
    let strange = answered("commit", "host:1", Access::Write, "ERR something new");
    assert_eq!((strange.kind(), strange.effect()), (Kind::Misuse, Effect::Unknown));
}

#[test]
fn a_write_that_may_have_been_sent_is_of_unknown_effect() {
    let lost =
        [ErrorKind::Timeout, ErrorKind::IO, ErrorKind::Canceled, ErrorKind::Unknown, ErrorKind::Protocol];
    for kind in lost {
        let error = failed("commit", "host:1", Access::Write, Error::new(kind.clone(), "gone"));
        assert_eq!((error.kind(), error.effect()), (Kind::Unavailable, Effect::Unknown), "{kind:?}");
        assert!(error.retry());
        let error = failed("get", "host:1", Access::Read, Error::new(kind, "gone"));
        assert_eq!(error.effect(), Effect::None);
    }
    // This is what the driver says of a command on a connection that it gave up, too.
    let tried = Error::new(ErrorKind::Unknown, "Too many failed write attempts.");
    assert_eq!(failed("commit", "host:1", Access::Write, tried).effect(), Effect::Unknown);
    // The connection is given up because another call was told so: this one may have been carried out.
    let shared = Error::new(ErrorKind::Unknown, "READONLY You can't write against a read only replica.");
    assert_eq!(failed("commit", "host:1", Access::Write, shared).effect(), Effect::Unknown);
}

#[test]
fn a_write_that_was_not_sent_has_no_effect() {
    let unsent = [
        Error::new(ErrorKind::Backpressure, "Max in-flight commands reached."),
        Error::new(ErrorKind::Unknown, "Failed to route command."),
        Error::new(ErrorKind::Routing, "Too many redirections."),
    ];
    for error in unsent {
        let failure = failed("commit", "host:1", Access::Write, error.clone());
        assert_eq!((failure.kind(), failure.effect()), (Kind::Unavailable, Effect::None), "{error}");
    }
}
