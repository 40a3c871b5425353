//! Meta's channels as Meta and a bot see them: over HTTP on both sides.

mod batches;
mod configured;
mod described;
mod edge;
mod fuzz;
mod fuzzing;
mod interactive;
mod media;
mod moved;
mod others;
mod page;
mod refusals;
mod shaped;
mod sizes;
mod snapshots;
mod support;
mod whatsapp;
