//! What only this backend has: a server that can be missing, refuse, forget, fill up and die.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod close;
mod cluster;
mod cluster_nodes;
mod cluster_turns;
mod faults;
mod keys;
mod network;
mod opening;
mod permissions;
mod restart;
mod sentinel;
mod tools;
mod turn_answers;
mod turn_crowds;
mod turn_doubts;
mod turn_faults;
mod turn_groups;
mod turn_late;
mod turn_losses;
mod turn_server;
mod turn_sweep;
mod turns;
