use super::*;

const REPLIES: &[(&str, bool)] = &[
    ("+OK\r\n", false),
    ("-ERR no\r\n", false),
    (":-7\r\n", false),
    ("$-1\r\n", false),
    ("$0\r\n\r\n", false),
    ("$9\r\na\r\n$3\r\nbc\r\n", false),
    ("*0\r\n", false),
    ("*-1\r\n", false),
    ("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\ntext\r\n", true),
    ("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", false),
    (">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\ntext\r\n", true),
    (">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", false),
    (">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$0\r\n\r\n", true),
    ("%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*2\r\n,1.5\r\n_\r\n", false),
    ("~1\r\n#t\r\n", false),
    ("$7\r\nmessage\r\n", false),
];

#[test]
fn replies_are_found_however_they_are_cut() {
    let stream: String = REPLIES.iter().map(|(reply, _)| *reply).collect();
    for size in [1, 2, 3, 7, 1000] {
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for piece in stream.as_bytes().chunks(size) {
            frames.push(piece, |frame| {
                found.push((String::from_utf8_lossy(frame).into_owned(), is_push(frame)));
            });
        }
        let expected = REPLIES.iter().map(|(reply, push)| ((*reply).to_owned(), *push)).collect::<Vec<_>>();
        assert_eq!(found, expected, "in pieces of {size}");
    }
}

#[test]
fn what_is_no_reply_passes_as_it_is() {
    for text in ["HTTP/1.1 200 OK\r\n", "$x\r\n", "\r\n", "*99999999999999999999\r\n"] {
        let mut found = Vec::new();
        Frames::default().push(text.as_bytes(), |frame| found.extend_from_slice(frame));
        assert_eq!(String::from_utf8_lossy(&found), text);
    }
}
