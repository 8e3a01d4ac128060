//! Replacing a part of a text.

/// A part of a text, and what takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextEdit<'a> {
    /// The text to replace.
    pub old: &'a str,
    /// The text that takes its place.
    pub new: &'a str,
    /// True to replace every occurrence; otherwise there must be exactly one.
    pub replace_all: bool,
}

/// A text with replacements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditedText {
    /// The new text.
    pub text: String,
    /// The number of replacements.
    pub count: usize,
}

/// The reason why a text was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditError {
    /// The text to replace is empty.
    Empty,
    /// The text to replace is the same as the new one.
    Unchanged,
    /// The text to replace differs from the new one in its line breaks alone, and occurs with those of the new one.
    HasLineBreaks,
    /// The text to replace does not occur.
    NotFound {
        /// True if it would be found without the newline at its end.
        without_newline: bool,
    },
    /// The text to replace occurs this number of times, and only one was to be replaced.
    Ambiguous(usize),
    /// The new text would have this number of bytes, which is too long.
    TooLong(usize),
}

impl TextEdit<'_> {
    /// Replaces the part in `text`. The result has at most `max_bytes` bytes. A part that is not there as it is given is
    /// looked for with the line breaks of Windows, or without: models read lines, and seldom repeat how they end.
    ///
    /// # Errors
    /// Why nothing is replaced.
    pub fn apply(&self, text: &str, max_bytes: usize) -> Result<EditedText, EditError> {
        let given = self.apply_as_given(text, max_bytes);
        if !matches!(given, Err(EditError::NotFound { .. })) || !self.old.contains('\n') {
            return given;
        }
        let plain = |part: &str| part.replace("\r\n", "\n");
        let windows = |part: &str| plain(part).replace('\n', "\r\n");
        let others = [
            (windows(self.old), windows(self.new)),
            (plain(self.old), plain(self.new)),
        ];
        for (old, new) in &others {
            if old == self.old {
                continue;
            }
            if old == new {
                if new == self.new && text.contains(new) {
                    return Err(EditError::HasLineBreaks);
                }
                continue;
            }
            let other = TextEdit { old, new, ..*self };
            let edited = other.apply_as_given(text, max_bytes);
            if !matches!(edited, Err(EditError::NotFound { .. })) {
                return edited;
            }
        }
        given
    }

    fn apply_as_given(&self, text: &str, max_bytes: usize) -> Result<EditedText, EditError> {
        let count = self.occurrences(text)?;
        // Checked before allocating: a few edits in a row can make a text grow a thousand times.
        let kept = text.len() - count * self.old.len();
        let length = count.saturating_mul(self.new.len()).saturating_add(kept);
        if length > max_bytes {
            return Err(EditError::TooLong(length));
        }
        Ok(EditedText {
            text: text.replace(self.old, self.new),
            count,
        })
    }

    fn occurrences(&self, text: &str) -> Result<usize, EditError> {
        if self.old.is_empty() {
            return Err(EditError::Empty);
        }
        if self.old == self.new {
            return Err(EditError::Unchanged);
        }
        match text.matches(self.old).count() {
            0 => {
                let shorter = self.old.trim_end_matches(['\r', '\n']);
                let is_shorter = shorter.len() < self.old.len() && !shorter.is_empty();
                Err(EditError::NotFound {
                    without_newline: is_shorter && text.contains(shorter),
                })
            }
            several if several > 1 && !self.replace_all => Err(EditError::Ambiguous(several)),
            count => Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, old: &str, new: &str) -> Result<String, EditError> {
        let edit = TextEdit {
            old,
            new,
            replace_all: false,
        };
        edit.apply(text, 1_000).map(|edited| edited.text)
    }

    #[test]
    fn lines_are_found_whichever_way_they_end() {
        let cases = [
            ("a\r\nb\r\nc", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\nc"),
            ("a\nb\nc", "a\r\nb", "x\r\ny", "x\ny\nc"),
            ("a\r\nb\nc", "b\nc", "x\ny", "a\r\nx\ny"),
            ("a\r\nb", "a\r\nb", "a\nb", "a\nb"),
            ("a\r\nb", "b", "x\ny", "a\r\nx\ny"),
        ];
        for (text, old, new, expected) in cases {
            assert_eq!(edited(text, old, new).as_deref(), Ok(expected), "{old:?} in {text:?}");
        }
    }

    #[test]
    fn lines_that_end_as_they_shall_are_told_from_those_that_are_not_there() {
        assert_eq!(edited("a\r\nb", "a\nb", "a\r\nb"), Err(EditError::HasLineBreaks));
        assert_eq!(edited("a\nb", "a\r\nb", "a\nb"), Err(EditError::HasLineBreaks));
        assert_eq!(edited("a\nb", "a\nb", "a\r\nb").as_deref(), Ok("a\r\nb"));
        let not_found = Err(EditError::NotFound { without_newline: false });
        assert_eq!(edited("a\nc", "a\nb", "a\r\nb"), not_found);
        // The text has the line breaks of neither.
        assert_eq!(edited("a\nb\nc", "a\r\nb\nc", "a\r\nb\r\nc"), not_found);
    }

    #[test]
    fn lines_that_are_not_unique_or_not_there_are_refused_whichever_way_they_end() {
        assert_eq!(
            edited("a\r\nb\r\na\r\nb\r\n", "a\nb\n", "x"),
            Err(EditError::Ambiguous(2))
        );
        assert_eq!(
            edited("a\r\nb", "b\nc", "x"),
            Err(EditError::NotFound { without_newline: false })
        );
        assert_eq!(
            edited("a\r\nb", "b\n", "x"),
            Err(EditError::NotFound { without_newline: true })
        );
    }
}
