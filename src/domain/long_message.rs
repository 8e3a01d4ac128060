//! The files with the texts of messages that are too long for the model.

use std::sync::Arc;

use super::path::{file_name, numbered};
use super::state::File;

/// The folder for messages that are too long for the model.
const LONG_FOLDER: &str = "/large_messages";

/// The place for the text of a message that is too long for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongMessagePlace {
    /// The path of the file.
    pub path: String,
    /// True if there is a file with this text already.
    pub is_written: bool,
}

impl LongMessagePlace {
    /// Returns the place for the `text` of the message with this id: a file that has the text, or one that is not there.
    /// A message may have taken the place of another with its id, or share its name with one. `own_path` gives the agent's
    /// own name of a path, and `file_at` finds files.
    pub fn of<'a>(
        id: &str,
        text: &str,
        own_path: impl Fn(String) -> String,
        file_at: impl Fn(&str) -> Option<&'a Arc<File>>,
    ) -> Self {
        let has_text = |path: &str| file_at(path).map(|file| file.has_text(text));
        let common = common_path(id);
        // The file of its caller, for a subagent that goes on from the caller's messages.
        let path = match has_text(&common) {
            Some(true) => common,
            Some(false) | None => numbered(own_path(common), |path| has_text(path) == Some(false)),
        };
        Self {
            is_written: has_text(&path).is_some(),
            path,
        }
    }

    /// Returns whether the file at `path` may have the text of the message with this id.
    pub fn may_be(path: &str, id: &str) -> bool {
        let rest = path.strip_prefix(&*common_path(id));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

/// Returns the beginning of the path of the file with the text of a message.
fn common_path(id: &str) -> String {
    format!("{LONG_FOLDER}/{}", file_name(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::Timestamp;

    #[test]
    fn the_file_of_a_long_message_has_the_text_of_that_message() {
        let texts = [("/large_messages/m_0", "first"), ("/large_messages/m_0-2", "second")];
        let files = texts.map(|(path, text)| (path, Arc::new(File::text(text, Timestamp(0)))));
        let file_at = |at: &str| files.iter().find(|(path, _)| *path == at).map(|(_, file)| file);
        let place = |id: &str, text: &str, suffix: &str| {
            LongMessagePlace::of(id, text, |path| format!("{path}{suffix}"), file_at)
        };
        let cases = [
            (place("m/0", "first", ""), ("/large_messages/m_0", true)),
            (place("m.0", "second", ""), ("/large_messages/m_0-2", true)),
            (place("m_0", "third", ""), ("/large_messages/m_0-3", false)),
            (place("m_0", "first", "-lane"), ("/large_messages/m_0", true)),
            (place("m_0", "second", "-lane"), ("/large_messages/m_0-lane", false)),
            (place("m_1", "second", "-lane"), ("/large_messages/m_1-lane", false)),
        ];
        for (place, (path, is_written)) in cases {
            assert_eq!(place.path, path);
            assert_eq!(place.is_written, is_written, "{path}");
        }
    }
}
