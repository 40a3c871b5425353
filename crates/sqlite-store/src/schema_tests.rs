use super::*;
use crate::keys::near;

fn column(conn: &Connection, sql: &str) -> i64 {
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn place() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    place::prepare(&path, &SqliteConfig::default()).unwrap();
    (folder, path)
}

const SECOND: &str = "ALTER TABLE chats ADD COLUMN note TEXT NOT NULL DEFAULT 'none'";

#[test]
fn an_empty_file_gets_the_tables_and_each_open_is_counted() {
    let (_folder, path) = place();
    for opened in 1..=3 {
        let conn = open(&path, &SqliteConfig::default()).unwrap();
        assert_eq!(column(&conn, "PRAGMA user_version"), STEPS.len() as i64);
        assert_eq!(column(&conn, "PRAGMA application_id"), i64::from(APPLICATION_ID));
        assert_eq!(column(&conn, "SELECT opened FROM counter"), opened);
        assert_eq!(column(&conn, "SELECT format FROM counter"), STEPS.len() as i64);
        assert_eq!(column(&conn, "PRAGMA synchronous"), 2);
    }
}

#[test]
fn an_older_file_is_taken_forward_with_its_rows() {
    let (_folder, path) = place();
    let config = SqliteConfig::default();
    let conn = connect(&path, &config, &STEPS[..1]).unwrap();
    conn.execute("INSERT INTO chats (scope, chat, state) VALUES (1, 'ana', '{}')", []).unwrap();
    write_counter(&conn, 41).unwrap();
    drop(conn);

    let conn = connect(&path, &config, &[STEPS[0], SECOND]).unwrap();
    assert_eq!(column(&conn, "PRAGMA user_version"), 2);
    assert_eq!(column(&conn, "SELECT format FROM counter"), 2);
    assert_eq!(column(&conn, "SELECT last FROM counter"), 41);
    let note: String =
        conn.query_row("SELECT note FROM chats WHERE chat = 'ana'", [], |row| row.get(0)).unwrap();
    assert_eq!(note, "none");
}

/// Rows of the first version, whatever their keys look like, are found by their keys in the present one.
#[test]
fn rows_of_the_first_version_keep_their_order_and_are_found() {
    let (_folder, path) = place();
    let config = SqliteConfig::default();
    let conn = connect(&path, &config, &STEPS[..1]).unwrap();
    let keys = [
        "im/1000123/5551",
        "om/1000123/5551:0#2",
        "ie/-100200/77/0012",
        "im/4917012345/wamid.HBgM",
        "im/ana/",
        "im/ana/-5",
        "im/ana/+5",
        "im/ana/ 5",
        "im/ana/5e3",
        "im/ana/5.9",
        "im/ana/\u{663}5",
        "im/añ/na/5ñ",
        "im/ana/9223372036854775806",
        "im/ana/9223372036854775808",
        "im/ana/00000000000000000000000007",
        "im/ana/7\0",
        "im/a\0na/7",
        "instance-7",
        "7",
        "/7",
        "",
    ];
    for (n, key) in keys.iter().enumerate() {
        let row = rusqlite::params![key.as_bytes(), n as i64];
        conn.execute("INSERT INTO durable VALUES (1, ?1, ?2, 3, 4, 5, x'00')", row).unwrap();
    }
    drop(conn);

    let conn = connect(&path, &config, STEPS).unwrap();
    let read = |sql: &str| {
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?)));
        rows.unwrap().map(Result::unwrap).collect::<Vec<_>>()
    };
    let expected: Vec<_> = keys.iter().map(|key| (key.as_bytes().to_vec(), near(key.as_bytes()))).collect();
    assert_eq!(read("SELECT key, near FROM durable ORDER BY rowid"), expected);
    let mut sorted = expected;
    sorted.sort();
    assert_eq!(read("SELECT key, near FROM durable WHERE scope = 1 AND due <= 3 ORDER BY due, key"), sorted);
    assert_eq!(column(&conn, "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%durable_1'"), 1);
}

#[test]
fn a_step_that_fails_changes_nothing() {
    let (_folder, path) = place();
    let config = SqliteConfig::default();
    drop(connect(&path, &config, &STEPS[..1]).unwrap());
    let broken = "CREATE TABLE half (x); CREATE TABLE half (x);";
    connect(&path, &config, &[STEPS[0], SECOND, broken]).unwrap_err();
    let conn = connect(&path, &config, &STEPS[..1]).unwrap();
    assert_eq!(column(&conn, "PRAGMA user_version"), 1);
    assert_eq!(column(&conn, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'"), 0);
    assert_eq!(column(&conn, "SELECT count(*) FROM pragma_table_info('chats') WHERE name = 'note'"), 0);
}

#[test]
fn a_newer_file_is_refused_with_both_versions() {
    let (_folder, path) = place();
    let config = SqliteConfig::default();
    drop(connect(&path, &config, &[STEPS[0], SECOND]).unwrap());
    let Err(Fault::Own { kind, message }) = connect(&path, &config, &STEPS[..1]) else {
        panic!("a newer file was opened");
    };
    assert_eq!(kind, StoreErrorKind::Incompatible);
    for part in ["version 2", "up to 1", "upgrade", &path.display().to_string()] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_change_under_a_running_program_is_noticed() {
    let (_folder, path) = place();
    let conn = open(&path, &SqliteConfig::default()).unwrap();
    assert_eq!(read_counter(&conn).unwrap(), 0);
    conn.execute("UPDATE counter SET format = 99", []).unwrap();
    assert_eq!(read_counter(&conn).unwrap_err().kind(), StoreErrorKind::Incompatible);
}
