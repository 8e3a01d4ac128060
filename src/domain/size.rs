//! Size limits of files and states.
//!
//! Sizes are in bytes, counted as [`value_size`] and [`Message::size`](super::message::Message::size) do: what is stored is
//! slightly longer.

use super::Invalid;
use super::json_size::value_size;
use super::state::{State, Update};

/// The size limits of files and states, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimits {
    /// The maximum size of the content of a file.
    pub file: usize,
    /// The maximum size of a state: messages, files and fields together.
    pub state: usize,
}

impl Default for SizeLimits {
    /// Returns 4 MiB for a file and 32 MiB for a state.
    fn default() -> Self {
        Self {
            file: 4 * 1024 * 1024,
            state: 32 * 1024 * 1024,
        }
    }
}

/// Returns the size of the writes of an update.
pub fn of_update(update: &Update) -> usize {
    let messages: usize = update.messages.iter().map(|message| message.size()).sum();
    let files = update
        .files
        .iter()
        .map(|(path, file)| path.len() + file.as_ref().map_or(0, |file| file.content.len()));
    let fields = update.fields.iter().map(|(name, value)| name.len() + value_size(value));
    messages + files.sum::<usize>() + fields.sum::<usize>()
}

/// Returns the size of a state. Visits all of it.
pub fn of_state(state: &State) -> usize {
    let messages = state.messages.size();
    let files = state.files.iter().map(|(path, file)| path.len() + file.content.len());
    let fields = state.fields.iter().map(|(name, value)| name.len() + value_size(value));
    messages + files.sum::<usize>() + fields.sum::<usize>()
}

impl SizeLimits {
    /// Checks the sizes of the files that an update writes.
    ///
    /// # Errors
    /// Returns the first file that is too large.
    pub fn check_files(&self, update: &Update) -> Result<(), Invalid> {
        let written = update
            .files
            .iter()
            .filter_map(|(path, file)| Some((path, file.as_ref()?)));
        for (path, file) in written {
            if file.content.len() > self.file {
                let reason = format!(
                    "is {} bytes long; at most {} are allowed",
                    file.content.len(),
                    self.file
                );
                return Err(Invalid::new(format!("files.{path}"), reason));
            }
        }
        Ok(())
    }

    /// Checks the size of an update that a client brings, and of its files. `field` is the field with the update.
    ///
    /// # Errors
    /// Returns the first file that is too large, or that no state has room for the update.
    pub fn check_brought(&self, update: &Update, field: &str) -> Result<(), Invalid> {
        self.check_files(update)?;
        if of_update(update) > self.state {
            let reason = format!("is larger than {} bytes, and no state may have more", self.state);
            return Err(Invalid::new(field, reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::message::Message;
    use crate::domain::time::Timestamp;

    #[test]
    fn the_size_of_an_update_is_the_growth_of_the_state() {
        let mut update = Update::messages([Message::human("hello"), Message::ai("x".repeat(1000))]);
        let file = crate::domain::state::File::text("y".repeat(500), Timestamp(0));
        update.files.insert("/a".to_owned(), Some(std::sync::Arc::new(file)));
        update.fields.insert("list".to_owned(), json!([1, "two", {"three": 3}]));
        let mut state = State::default();
        state.apply(&update);
        assert_eq!(of_state(&state), of_update(&update));
        assert!(of_state(&state) > 1500);
    }

    #[test]
    fn a_file_that_is_too_large_is_named() {
        let limits = SizeLimits::default();
        let written = |length: usize| {
            let file = crate::domain::state::File::text("y".repeat(length), Timestamp(0));
            let files = [("/a".to_owned(), Some(std::sync::Arc::new(file)))].into();
            limits
                .check_files(&Update {
                    files,
                    ..Update::none()
                })
                .map_err(|invalid| invalid.field)
        };
        assert_eq!(written(limits.file), Ok(()));
        assert_eq!(written(limits.file + 1), Err("files./a".to_owned()));
    }

    #[test]
    fn an_update_for_which_no_state_has_room_is_refused() {
        let limits = SizeLimits { file: 100, state: 500 };
        let brought = |length: usize| {
            let update = Update::messages([Message::human("x".repeat(length))]);
            limits.check_brought(&update, "input").map_err(|invalid| invalid.field)
        };
        assert_eq!(brought(400), Ok(()));
        assert_eq!(brought(501), Err("input".to_owned()));
    }
}
