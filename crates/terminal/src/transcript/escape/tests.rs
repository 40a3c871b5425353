use super::{line, unescape};

#[test]
fn what_would_break_the_line_comes_back_as_it_was() {
    let texts = ["", "plain ñ", "a\tb", "a\nb\r\n", "\\", "\\n", "\\\\t", "a\0b", "-", "\\-", "\t\n\r\0\\"];
    for key in texts {
        for text in texts {
            let line = line(Some(key), "a\tb", text);
            let body = line.strip_suffix('\n').expect("ends the line");
            assert!(!body.contains(['\n', '\r', '\0']), "{body:?}");
            let fields: Vec<_> = body.split('\t').collect();
            assert_eq!(fields.len(), 3, "{body:?}");
            assert_ne!(fields[0], "-", "a key is never the sign of no key");
            let [key_back, chat, text_back] = [0, 1, 2].map(|i| unescape(fields[i].as_bytes()));
            assert_eq!(
                (key_back.as_deref(), chat.as_deref(), text_back.as_deref()),
                (Some(key), Some("a\tb"), Some(text))
            );
        }
    }
    assert_eq!(line(None, "c", "t"), "-\tc\tt\n");
}

#[test]
fn what_was_never_escaped_is_refused() {
    for field in [&b"\\x"[..], b"\\", b"a\0", b"a\r", b"\xff"] {
        assert_eq!(unescape(field), None, "{field:?}");
    }
}
