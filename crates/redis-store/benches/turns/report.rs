//! What is printed and written.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::plot::Chart;

/// A table of figures.
pub(crate) struct Table {
    title: String,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(title: &str, heads: [&str; N]) -> Self {
        let heads = heads.map(str::to_owned).to_vec();
        Self { title: title.to_owned(), heads, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// As markdown, which is also what is printed.
    fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).chain(self.heads.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.heads.len()).map(width).collect();
        let line = |cells: &[String]| {
            let cells = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} |"));
            format!("|{}\n", cells.collect::<String>())
        };
        let rule = widths.iter().map(|width| format!(" {} |", "-".repeat(*width))).collect::<String>();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}\n\n{}|{rule}\n{rows}", self.title, line(&self.heads))
    }
}

struct Aim {
    what: String,
    aim: String,
    found: String,
    reached: bool,
}

/// Everything that was found.
#[derive(Default)]
pub(crate) struct Report {
    tables: Vec<Table>,
    aims: Vec<Aim>,
    figures: Map<String, Value>,
    charts: Vec<Chart>,
    notes: Vec<String>,
}

impl Report {
    /// Prints a table, and keeps it.
    pub(crate) fn table(&mut self, table: Table) {
        println!("\n{}", table.text());
        self.tables.push(table);
    }

    pub(crate) fn aim(&mut self, what: &str, aim: &str, found: impl Into<String>, reached: bool) {
        self.aims.push(Aim { what: what.to_owned(), aim: aim.to_owned(), found: found.into(), reached });
    }

    pub(crate) fn figures(&mut self, name: &str, figures: Value) {
        self.figures.insert(name.to_owned(), figures);
    }

    pub(crate) fn chart(&mut self, chart: Chart) {
        self.charts.push(chart);
    }

    pub(crate) fn note(&mut self, note: String) {
        println!("{note}");
        self.notes.push(note);
    }

    /// Prints the aims, and writes everything to a folder.
    pub(crate) fn finish(mut self, folder: &Path) {
        let mut table = Table::new("Aims", ["what", "aim", "found", ""]);
        for aim in &self.aims {
            let mark = if aim.reached { "reached" } else { "MISSED" };
            table.row([aim.what.clone(), aim.aim.clone(), aim.found.clone(), mark.to_owned()]);
        }
        let aims = self.aims.iter().map(
            |aim| json!({ "what": aim.what, "aim": aim.aim, "found": aim.found, "reached": aim.reached }),
        );
        self.figures.insert("aims".to_owned(), aims.collect());
        self.figures.insert("notes".to_owned(), json!(self.notes));
        self.table(table);
        std::fs::create_dir_all(folder).unwrap();
        let mut markdown = String::new();
        for note in &self.notes {
            writeln!(markdown, "{note}\n").unwrap();
        }
        for table in &self.tables {
            writeln!(markdown, "{}", table.text()).unwrap();
        }
        let json = format!("{:#}\n", Value::Object(self.figures));
        let svg = crate::plot::svg(&self.charts);
        for (name, text) in [("turns.md", markdown), ("turns.json", json), ("turns.svg", svg)] {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            println!("written to {}", path.display());
        }
    }
}
