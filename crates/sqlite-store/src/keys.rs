//! Scopes as numbers: each row carries a small integer instead of the scope's name. And what keys are near to each other.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

/// Numbers that this connection has seen. They never change and are never given back.
#[derive(Default)]
pub(crate) struct Scopes {
    known: HashMap<Arc<str>, i64>,
    /// Made in the transaction that is open.
    fresh: Vec<(Arc<str>, i64)>,
}

impl Scopes {
    pub(crate) fn find(&mut self, conn: &Connection, name: &Arc<str>) -> rusqlite::Result<Option<i64>> {
        if let Some(&id) = self.known.get(name) {
            return Ok(Some(id));
        }
        if let Some((_, id)) = self.fresh.iter().find(|(fresh, _)| fresh == name) {
            return Ok(Some(*id));
        }
        let id = conn
            .prepare_cached("SELECT id FROM scopes WHERE name = ?1")?
            .query_row([&**name], |row| row.get(0))
            .optional()?;
        if let Some(id) = id {
            self.known.insert(Arc::clone(name), id);
        }
        Ok(id)
    }

    pub(crate) fn find_or_make(&mut self, conn: &Connection, name: &Arc<str>) -> rusqlite::Result<i64> {
        if let Some(id) = self.find(conn, name)? {
            return Ok(id);
        }
        let id = conn.prepare_cached("INSERT INTO scopes (name) VALUES (?1)")?.insert([&**name])?;
        self.fresh.push((Arc::clone(name), id));
        Ok(id)
    }

    /// The transaction was committed.
    pub(crate) fn keep(&mut self) {
        self.known.extend(self.fresh.drain(..));
    }

    /// The transaction was rolled back.
    pub(crate) fn forget(&mut self) {
        self.fresh.clear();
    }
}

/// The number behind the last slash of a key, at most `i64::MAX`; 0 if there is none. Rows are found by it before they are found
/// by their key. It must not change: step 2 of the schema computes it as well.
pub(crate) fn near(key: &[u8]) -> i64 {
    let Some(slash) = key.iter().rposition(|&byte| byte == b'/') else { return 0 };
    if key.contains(&0) {
        return 0;
    }
    let digits = key[slash + 1..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: i64, digit| number.saturating_mul(10).saturating_add(i64::from(digit - b'0')))
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
