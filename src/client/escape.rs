//! Makes texts of others harmless for a terminal. What an agent or a tool says must not move the cursor, change colours
//! or titles, fill the clipboard, or show itself in another order than it has.

/// Returns a text of several lines in which everything but line ends and tabs that could drive the terminal is written
/// as `\u{…}`.
pub(crate) fn text(text: &str) -> String {
    escaped(text, |letter| matches!(letter, '\n' | '\t'))
}

/// Returns a text for one line: line ends are spaces.
pub(crate) fn line(text: &str) -> String {
    let joined: String = text
        .trim()
        .chars()
        .map(|letter| if matches!(letter, '\n' | '\t') { ' ' } else { letter })
        .collect();
    escaped(&joined, |_| false)
}

/// Returns JSON in which the letters that could drive the terminal are escaped in the manner of JSON. It means the same.
pub(crate) fn json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for letter in json.chars() {
        // Outside of strings JSON has no other control characters.
        if letter != '\n' && is_active(letter) {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            safe.push(letter);
        }
    }
    safe
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_active(letter) && !is_kept(letter) {
            safe.extend(letter.escape_unicode());
        } else {
            safe.push(letter);
        }
    }
    safe
}

/// Returns whether a letter does something besides being shown: control characters of both ranges, marks and overrides
/// of the writing direction, line separators, and letters without an own shape that hide text.
fn is_active(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A title, a clipboard, a colour, a CSI of one byte, a backspace, a carriage return, and a direction override.
    const ATTACK: &str = "a\u{1b}]0;title\u{7}\u{1b}]52;c;eA==\u{1b}\\\u{1b}[31mb\u{9b}2J\u{8}\rc\u{202e}d\u{7f}";

    #[test]
    fn nothing_that_drives_a_terminal_is_left() {
        for safe in [text(ATTACK), line(ATTACK), json(ATTACK)] {
            assert!(!safe.chars().any(is_active), "{safe:?}");
            assert!(safe.contains("]0;title"), "the text stays readable: {safe}");
        }
        assert_eq!(text("\u{1b}[31m"), "\\u{1b}[31m");
    }

    #[test]
    fn ordinary_text_of_all_languages_stays_as_it_is() {
        let ordinary = "Otters: 水獺 לוטרה 🦦👩‍🔬 é\n\tend";
        assert_eq!(text(ordinary), ordinary);
        assert_eq!(line("one\ntwo"), "one two");
    }

    #[test]
    fn escaped_json_means_the_same() {
        let value = serde_json::json!({"text": ATTACK, "tag": "\u{e0041}"});
        let safe = json(&value.to_string());
        assert!(!safe.chars().any(is_active));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("JSON"), value);
    }
}
