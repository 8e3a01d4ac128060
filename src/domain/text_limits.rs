//! Limits of texts, in characters.

/// Returns the first characters of a text.
pub fn first_chars(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(end, _)| &text[..end])
}

/// Returns a text, or its first characters with `mark` behind them if it has more than `max`.
pub fn cut_after(text: &str, max: usize, mark: &str) -> String {
    let shown = first_chars(text, max);
    if shown.len() == text.len() {
        text.to_owned()
    } else {
        format!("{shown}{mark}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_longer_text_is_cut_between_two_characters() {
        assert_eq!(first_chars("äöü", 3), "äöü");
        assert_eq!(first_chars("äöü", 2), "äö");
        assert_eq!(first_chars("äöü", 0), "");
        assert_eq!(cut_after("äöü", 3, "…"), "äöü");
        assert_eq!(cut_after("äöü", 2, "…"), "äö…");
    }
}
