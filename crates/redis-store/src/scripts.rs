//! The scripts, one file each. The server runs one script at a time, so each is atomic.

/// A script. Its text is sent only to a server that does not know it.
#[derive(Debug)]
pub(crate) struct Script {
    /// Its place in [`ALL`].
    pub(crate) number: usize,
    pub(crate) text: &'static str,
}

macro_rules! scripts {
    ($($number:literal: $name:ident = $file:literal,)+) => {
        $(pub(crate) static $name: Script = Script { number: $number, text: include_str!($file) };)+
        /// Those that are called by their SHA-1.
        pub(crate) static ALL: &[&Script] = &[$(&$name),+];
    };
}

scripts! {
    0: COMMIT = "scripts/commit.lua",
    1: SCAN = "scripts/scan.lua",
    2: NOW = "scripts/now.lua",
    3: SET_CHECKPOINT = "scripts/set_checkpoint.lua",
    4: CLEAR_CHECKPOINT = "scripts/clear_checkpoint.lua",
    5: APPEND_LOG = "scripts/append_log.lua",
}

/// Called once, when a store is opened.
pub(crate) const LAYOUT: &str = include_str!("scripts/layout.lua");

/// Called once, when a store is opened.
pub(crate) const PROBE: &str = include_str!("scripts/probe.lua");
