//! `conformance`: the suites against the backends of this build.

use std::process::ExitCode;

fn main() -> ExitCode {
    botmesh_conformance::cli::own().main(std::env::args_os())
}
