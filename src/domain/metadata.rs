//! The metadata that clients attach to threads, runs, assistants and crons.

use serde_json::{Map, Value};

use super::Invalid;

/// The maximum size of metadata, in bytes of JSON. It is searched, returned in every list, and copied to runs and
/// checkpoints.
pub const MAX_METADATA_BYTES: usize = 64 * 1024;

/// Checks the size of a client's metadata, merged into what is stored already.
///
/// # Errors
/// Returns an error if it exceeds [`MAX_METADATA_BYTES`].
pub fn check(metadata: &Map<String, Value>) -> Result<(), Invalid> {
    let mut size = JsonSize(0);
    // The only error of this writer is that the text is too large.
    serde_json::to_writer(&mut size, metadata).map_err(|_| {
        let reason = format!("is larger than {MAX_METADATA_BYTES} bytes; store larger values in the state");
        Invalid::new("metadata", reason)
    })
}

/// A writer that counts bytes of JSON up to [`MAX_METADATA_BYTES`].
struct JsonSize(usize);

impl std::io::Write for JsonSize {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        if self.0 > MAX_METADATA_BYTES {
            return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_bounded_by_its_json() {
        let of =
            |bytes: usize| Map::from_iter([("x".to_owned(), Value::from("y".repeat(bytes - r#"{"x":""}"#.len())))]);
        assert_eq!(check(&Map::new()), Ok(()));
        assert_eq!(check(&of(MAX_METADATA_BYTES)), Ok(()));
        assert!(check(&of(MAX_METADATA_BYTES + 1)).is_err_and(|error| error.field == "metadata"));
    }
}
