//! The scripts, one file each. The server runs one script at a time, so each is atomic.

/// A script. Its text is sent only to a server that does not know it.
#[derive(Debug)]
pub(crate) struct Script {
    /// Its place in [`ALL`].
    pub(crate) number: usize,
    pub(crate) text: &'static str,
}

macro_rules! scripts {
    ($($number:literal: $name:ident = $text:expr,)+) => {
        $(pub(crate) static $name: Script = Script { number: $number, text: $text };)+
        /// Those that are called by their SHA-1.
        pub(crate) static ALL: &[&Script] = &[$(&$name),+];
    };
}

/// A script of the turns, after what its kind has in common. Those that end something must not fail for want of memory.
macro_rules! turns {
    ($flags:literal, [$($common:literal),*], $file:literal) => {
        concat!(
            "#!lua",
            $flags,
            "\n",
            include_str!("scripts/turns/state.lua"),
            $(include_str!(concat!("scripts/turns/", $common, ".lua")),)*
            include_str!(concat!("scripts/turns/", $file, ".lua"))
        )
    };
}

scripts! {
    0: COMMIT = include_str!("scripts/commit.lua"),
    1: SCAN = include_str!("scripts/scan.lua"),
    2: NOW = include_str!("scripts/now.lua"),
    3: SET_CHECKPOINT = include_str!("scripts/set_checkpoint.lua"),
    4: CLEAR_CHECKPOINT = include_str!("scripts/clear_checkpoint.lua"),
    5: APPEND_LOG = include_str!("scripts/append_log.lua"),
    6: OPEN = turns!("", ["clock", "words", "sessions"], "open"),
    7: BEAT = turns!(" flags=allow-oom", ["clock", "words", "sessions"], "beat"),
    8: CLOSE = turns!(" flags=allow-oom", ["clock", "words", "sessions"], "close"),
    9: ENTER = turns!("", ["clock", "turn", "enter_free", "words", "sessions", "queue"], "enter"),
    10: LEAVE = turns!(" flags=allow-oom", ["turn", "leave_alone", "clock", "words", "sessions", "queue"], "leave"),
    11: POLL = turns!(" flags=allow-oom", ["clock", "words", "turn", "sessions", "queue"], "poll"),
    12: LOCK_ACQUIRE = turns!("", ["clock", "words", "lock"], "lock_acquire"),
    13: LOCK_RENEW = turns!(" flags=allow-oom", ["clock", "words", "lock"], "lock_renew"),
    14: LOCK_RELEASE = turns!(" flags=allow-oom", ["clock", "words", "lock"], "lock_release"),
    15: SWEEP = turns!(" flags=allow-oom", ["clock", "words", "turn", "sessions", "queue"], "sweep"),
    16: TOGETHER = turns!("", ["clock"], "together"),
}

/// Called once, when a store is opened.
pub(crate) const LAYOUT: &str = include_str!("scripts/layout.lua");

/// Called once, when a store is opened.
pub(crate) const PROBE: &str = include_str!("scripts/probe.lua");

/// Called once, when a coordinator connects.
pub(crate) const TURNS_PROBE: &str = include_str!("scripts/turns/probe.lua");
