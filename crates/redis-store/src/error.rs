//! From the server's and the driver's errors to kinds: the one place that decides what a failure is called, whether to
//! try again, and whether a write may have happened.

use botmesh_core::error::{Effect, StoreError, StoreErrorKind};
use fred::error::{Error, ErrorKind};

/// What errors call this backend.
pub(crate) const BACKEND: &str = "redis";

/// What a call does, and so what its failure may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// How the server begins an error, and what that means. All of these come before the first write of a script.
const ANSWERS: &[(&str, StoreErrorKind, &str)] = &[
    ("LOADING", StoreErrorKind::Unavailable, "it loads its data after a start; try again"),
    ("MASTERDOWN", StoreErrorKind::Unavailable, "it is a replica that lost its master; try again"),
    (
        "CLUSTERDOWN",
        StoreErrorKind::Unavailable,
        "its Cluster does not serve all slots; start the missing nodes",
    ),
    ("TRYAGAIN", StoreErrorKind::Unavailable, "its Cluster moves slots; try again"),
    ("BUSY", StoreErrorKind::Unavailable, "it runs a long script of somebody; try again"),
    (
        "NOREPLICAS",
        StoreErrorKind::Unavailable,
        "it refuses writes without its replicas; start them, or lower min-replicas-to-write",
    ),
    (
        "MISCONF",
        StoreErrorKind::Unavailable,
        "it refuses writes because it cannot save to its disk; look into its log and free space",
    ),
    (
        "READONLY",
        StoreErrorKind::Unavailable,
        "it is a replica and takes no writes; connect to the master, or try again after a failover",
    ),
    ("NOSCRIPT", StoreErrorKind::Unavailable, "it forgot a script that was just sent; try again"),
    (
        "ERR max number of clients",
        StoreErrorKind::Unavailable,
        "it has no connection left; raise maxclients or stop other clients",
    ),
    ("OOM", StoreErrorKind::Full, "its memory is full; raise maxmemory or remove data"),
    ("NOAUTH", StoreErrorKind::Denied, "it wants a password; put it into the URL"),
    ("WRONGPASS", StoreErrorKind::Denied, "it refuses the user or the password; correct the URL"),
    ("ERR invalid password", StoreErrorKind::Denied, "it refuses the password; correct the URL"),
    (
        "ERR AUTH",
        StoreErrorKind::Denied,
        "it has no password and the URL has one; remove it, or set one on the server",
    ),
    (
        "ERR Client sent AUTH",
        StoreErrorKind::Denied,
        "it has no password and the URL has one; remove it, or set one on the server",
    ),
    (
        "DENIED",
        StoreErrorKind::Denied,
        "it takes no connections from other hosts without a password (protected mode); set one",
    ),
    (
        "NOPERM",
        StoreErrorKind::Denied,
        "the user may not do this; give it the permissions that the README of botmesh-redis-store lists",
    ),
    (
        "WRONGTYPE",
        StoreErrorKind::Incompatible,
        "a key under the prefix belongs to another program; choose another prefix or remove the key",
    ),
    ("DAMAGED", StoreErrorKind::Corrupt, "stored data is damaged; restore a backup"),
    ("MOVED", StoreErrorKind::Misuse, "it is a node of a Cluster; write redis-cluster:// in the URL"),
    ("ASK", StoreErrorKind::Misuse, "it is a node of a Cluster; write redis-cluster:// in the URL"),
    ("CROSSSLOT", StoreErrorKind::Misuse, "it is a node of a Cluster; write redis-cluster:// in the URL"),
    (
        "ERR This instance has cluster support disabled",
        StoreErrorKind::Misuse,
        "it is no node of a Cluster; write redis:// in the URL",
    ),
    (
        "ERR unknown command",
        StoreErrorKind::Incompatible,
        "it lacks a command; use Redis 6.2 or newer, or a server that is compatible with it",
    ),
    (
        "ERR DB index is out of range",
        StoreErrorKind::Misuse,
        "it has no database of this number; correct the URL",
    ),
    (
        "ERR SELECT is not allowed",
        StoreErrorKind::Misuse,
        "it has no database of this number; remove it from the URL",
    ),
];

/// An error that the server answered with.
pub(crate) fn answered(operation: &'static str, place: &str, access: Access, text: &str) -> StoreError {
    let code = code_of(text);
    match ANSWERS.iter().find(|(begin, ..)| code.starts_with(begin)) {
        Some((_, kind, advice)) => {
            let error = StoreError::new(*kind, BACKEND, operation, format!("{place}: {advice} ({text})"));
            // Permissions that are taken away at work may stop a script between two writes.
            if *kind == StoreErrorKind::Denied { with_effect(error, access) } else { error }
        }
        None => {
            let message = format!("{place}: the server gave an error that is not known here: {text}");
            with_effect(StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, message), access)
        }
    }
}

/// Servers before version 7 put the error of a command in a script behind words of their own, and those of 7 call a
/// command that is not permitted there a plain error.
fn code_of(text: &str) -> &str {
    let text = text.trim_start_matches('-');
    if text.starts_with("ERR The user executing the script") || text.starts_with("ERR ACL failure in script")
    {
        return "NOPERM";
    }
    match text.rsplit_once("@user_script:") {
        Some((before, inner)) if before.starts_with("ERR Error running script") => {
            inner.trim_start_matches(|c: char| c.is_ascii_digit() || ": -".contains(c))
        }
        _ => text,
    }
}

/// A failure of the connection or of the driver: nobody knows what the server did with what was sent.
pub(crate) fn failed(operation: &'static str, place: &str, access: Access, error: Error) -> StoreError {
    let known = ANSWERS.iter().find(|(begin, ..)| code_of(error.details()).starts_with(begin));
    let (kind, what) = match (known, error.kind()) {
        (Some((_, kind, advice)), _) => (*kind, *advice),
        (None, ErrorKind::Auth) => {
            (StoreErrorKind::Denied, "it refuses the user or the password; correct the URL")
        }
        (None, ErrorKind::Url | ErrorKind::Config) => (
            StoreErrorKind::Misuse,
            "it cannot be used in this way; correct the URL or the client's configuration",
        ),
        (None, ErrorKind::Timeout) => (
            StoreErrorKind::Unavailable,
            "no answer came in time; see whether it is up and reachable, and try again",
        ),
        (None, ErrorKind::Tls) => (
            StoreErrorKind::Unavailable,
            "no TLS connection can be made; see whether its port speaks TLS and whether this host trusts its certificate",
        ),
        (None, ErrorKind::Backpressure) => {
            (StoreErrorKind::Unavailable, "too many calls wait for it; try again")
        }
        (None, _) if error.details().contains("InvalidCertificate") => (
            StoreErrorKind::Unavailable,
            "its certificate is not trusted; install the certificate of its authority on this host, or name it in \
             SSL_CERT_FILE",
        ),
        _ => (
            StoreErrorKind::Unavailable,
            "the connection failed; see whether it is up and reachable, and try again",
        ),
    };
    let sent = !is_unsent(&error);
    let failure = StoreError::new(kind, BACKEND, operation, format!("{place}: {what}")).with_source(error);
    if sent { with_effect(failure, access) } else { failure }
}

/// Errors of the driver that come before a command is written.
fn is_unsent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Backpressure | ErrorKind::Routing | ErrorKind::Url | ErrorKind::Config)
        || error.details() == "Failed to route command."
}

/// The keys of a call are on two nodes of a Cluster, or not on the one that they are on their way to.
pub(crate) fn is_on_its_way(error: &StoreError) -> bool {
    error.to_string().contains("(TRYAGAIN")
}

/// An answer that the protocol of the scripts does not have.
pub(crate) fn unexpected(operation: &'static str, place: &str, access: Access, what: &str) -> StoreError {
    let message = format!("{place}: {what}; see whether the server is compatible with Redis 6.2");
    with_effect(StoreError::new(StoreErrorKind::Corrupt, BACKEND, operation, message), access)
}

pub(crate) fn with_effect(error: StoreError, access: Access) -> StoreError {
    match access {
        Access::Read => error,
        Access::Write => error.with_unknown_effect(),
    }
}

/// The second write of several that belong together failed: the first one stays.
pub(crate) fn after_a_part(error: StoreError) -> StoreError {
    match error.effect() {
        Effect::None => error.with_unknown_effect(),
        Effect::Unknown => error,
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
