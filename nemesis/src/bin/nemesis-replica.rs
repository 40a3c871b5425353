//! One replica; see `botmesh_nemesis::replica`.

use std::process::ExitCode;

use botmesh_nemesis::replica::{self, Args};
use clap::Parser as _;

fn main() -> ExitCode {
    match replica::run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", botmesh::describe(&*error));
            ExitCode::FAILURE
        }
    }
}
