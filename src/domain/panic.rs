//! The text of a panic that was caught.

use std::any::Any;

/// Returns the text of a panic from its payload, or `no message` if it was raised with a value that is no text.
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_panic_is_read_from_every_payload() {
        assert_eq!(panic_text(&"fixed"), "fixed");
        assert_eq!(panic_text(&"formatted".to_owned()), "formatted");
        assert_eq!(panic_text(&7), "no message");
    }
}
