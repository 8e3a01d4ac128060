//! The metadata that clients attach to threads, runs, assistants and crons.

use serde_json::{Map, Value};

use super::Invalid;
use super::json_size::json_size;

/// The maximum size of metadata, in bytes of JSON. It is searched, returned in every list, and copied to runs and
/// checkpoints.
pub const MAX_METADATA_BYTES: usize = 64 * 1024;

/// Checks the size of a client's metadata, merged into what is stored already.
///
/// # Errors
/// Returns an error if it exceeds [`MAX_METADATA_BYTES`].
pub fn check(metadata: &Map<String, Value>) -> Result<(), Invalid> {
    if json_size(metadata, MAX_METADATA_BYTES).is_some() {
        return Ok(());
    }
    let reason = format!("is larger than {MAX_METADATA_BYTES} bytes; store larger values in the state");
    Err(Invalid::new("metadata", reason))
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
