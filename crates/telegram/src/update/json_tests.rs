use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn read(text: &str) -> serde_json::Result<Json<'_>> {
    serde_json::from_str(text)
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |value| {
        prop_oneof![
            prop::collection::vec(value.clone(), 0..8).prop_map(Value::from),
            prop::collection::vec((any::<String>(), value), 0..8).prop_map(Value::from_iter),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_kept_is_what_was_written(value in any_json()) {
        let text = value.to_string();
        prop_assert_eq!(read(&text).expect("JSON").to_value(), serde_json::from_str::<Value>(&text).expect("JSON"));
    }
}

#[test]
fn of_fields_with_the_same_name_the_last_one_counts() {
    let text = r#"{"b":1,"a":1,"\u0062":2,"a":"two"}"#;
    let json = read(text).expect("JSON");
    assert_eq!((json["a"].as_str(), json["b"].as_i64()), (Some("two"), Some(2)));
    let (name, value) =
        json.as_object().and_then(|fields| fields.first(|name| name != "a")).expect("a field");
    assert_eq!((name, value.as_i64()), ("b", Some(2)));
    assert_eq!(json.to_value(), serde_json::from_str::<Value>(text).expect("JSON"));
}

#[test]
fn what_is_not_there_is_null_however_deep() {
    let json = read(r#"{"text":"a","list":[]}"#).expect("JSON");
    assert!(matches!(json["chat"]["id"], Json::Null));
    assert!(matches!(json["text"]["id"], Json::Null));
    assert!(matches!(json["list"]["id"], Json::Null));
}

#[test]
fn what_is_too_deep_or_no_json_is_refused() {
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert!(read(&deep(127)).is_ok());
    for text in [&*deep(128), "", "{", "[1,]", "{\"a\":1}}", "\"\\ud83d\"", "1e999"] {
        assert!(read(text).is_err(), "{text}");
    }
    assert!(serde_json::from_slice::<Json<'_>>(b"\"\xff\"").is_err());
}
