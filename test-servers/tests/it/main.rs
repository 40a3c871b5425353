//! Servers as a test uses them.

mod redis;
mod survivors;
