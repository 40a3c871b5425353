use super::*;

#[test]
fn an_unknown_field_is_refused_by_name() {
    let error = serde_json::from_str::<SqliteConfig>(r#"{"busy_time":"1s"}"#).unwrap_err().to_string();
    assert!(error.contains("busy_time") && error.contains("busy_timeout"), "{error}");
}

#[test]
fn durations_are_text_or_milliseconds() {
    let text: SqliteConfig =
        serde_json::from_str(r#"{"busy_timeout":"250ms","synchronous":"normal"}"#).unwrap();
    let number: SqliteConfig =
        serde_json::from_str(r#"{"busy_timeout":250,"synchronous":"normal"}"#).unwrap();
    assert_eq!(text, number);
    assert_eq!(text.busy_timeout, Duration::from_millis(250));
    assert_eq!(text.synchronous, Synchronous::Normal);
    assert_eq!(text.journal_size_limit, SqliteConfig::default().journal_size_limit);
}

#[test]
fn values_that_cannot_work_name_their_field() {
    let long = SqliteConfig::default().with_busy_timeout(Duration::from_secs(4000)).validate().unwrap_err();
    assert_eq!(long.field, "sqlite.busy_timeout");
    let small = SqliteConfig::default().with_journal_size_limit(1).validate().unwrap_err();
    assert_eq!(small.field, "sqlite.journal_size_limit");
    assert!(SqliteConfig::default().validate().is_ok());
}
