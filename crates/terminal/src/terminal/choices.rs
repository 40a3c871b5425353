//! The buttons that can be pressed by typing.

use botmesh_core::content::{Button, Content, ContentBody};

/// The buttons of the chat's last message.
#[derive(Debug, Default)]
pub(super) struct Choices(Vec<Button>);

impl Choices {
    /// A message was shown: its buttons, or none, replace those of the one before.
    pub(super) fn shown(&mut self, content: &Content) {
        let only_marks_another =
            matches!(content.body, ContentBody::Reaction { .. }) && content.buttons.is_empty();
        if !only_marks_another {
            self.0.clone_from(&content.buttons);
        }
    }

    /// The button that this line presses. A title goes before a number, so that a button `5` is pressed by what it says.
    pub(super) fn pressed(&self, line: &str) -> Option<Button> {
        let typed = line.trim();
        let folded = typed.to_lowercase();
        let by_title = || self.0.iter().find(|button| button.title.trim().to_lowercase() == folded);
        let by_number = || self.0.get(number(typed)?.checked_sub(1)?);
        by_title().or_else(by_number).cloned()
    }
}

/// Digits only: `+1` or `01` is not a number that was shown.
fn number(typed: &str) -> Option<usize> {
    let shown = typed.bytes().all(|byte| byte.is_ascii_digit()) && !typed.starts_with('0');
    shown.then(|| typed.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use botmesh_core::content::{Button, Content, ContentBody};

    use super::Choices;

    fn pressed(choices: &Choices, line: &str) -> Option<String> {
        choices.pressed(line).map(|button| button.id)
    }

    #[test]
    fn a_title_or_a_number_presses_until_another_message_comes() {
        let buttons = [Button::new("a", "Mañana"), Button::new("b", "3"), Button::new("c", "Later")];
        let mut choices = Choices::default();
        assert_eq!(pressed(&choices, "1"), None);
        choices.shown(&Content::text("When?").with_buttons(buttons));
        choices.shown(&Content::from(ContentBody::Reaction { message: "m".into(), emoji: None }));
        let cases = [
            ("1", Some("a")),
            (" 2 ", Some("b")),
            ("3", Some("b")),
            ("MAÑANA", Some("a")),
            ("later", Some("c")),
            ("0", None),
            ("01", None),
            ("+1", None),
            ("4", None),
            ("99999999999999999999999", None),
            ("", None),
            ("tomorrow", None),
        ];
        for (line, expected) in cases {
            assert_eq!(pressed(&choices, line).as_deref(), expected, "{line:?}");
        }
        choices.shown(&Content::text("How many?"));
        assert_eq!(pressed(&choices, "1"), None);
    }
}
