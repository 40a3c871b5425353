//! `nemesis-check FOLDER`: checks the histories in a folder, and draws the first violation of each invariant beside them.

use std::path::Path;
use std::process::ExitCode;

use botmesh_nemesis::check::{Limits, check, draw};
use botmesh_nemesis::history;

fn main() -> ExitCode {
    let folders: Vec<_> = std::env::args_os().skip(1).collect();
    let [folder] = &folders[..] else {
        eprintln!("usage: nemesis-check FOLDER");
        return ExitCode::FAILURE;
    };
    match run(Path::new(folder)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path) -> std::io::Result<bool> {
    let records = history::read(folder)?;
    let report = check(&records, Limits::default()).map_err(std::io::Error::other)?;
    print!("{report}");
    for invariant in report.broken() {
        let first = report.violations.iter().find(|violation| violation.invariant == invariant);
        if let Some(drawing) = first.and_then(|violation| draw(&records, violation)) {
            let path = folder.join(format!("{invariant:?}.svg").to_lowercase());
            std::fs::write(&path, drawing)?;
            println!("drawn: {}", path.display());
        }
    }
    Ok(report.is_clean())
}
