//! Headers that a configuration or a definition names.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::domain::Invalid;

/// Returns headers with these names and values, which are taken for secrets and not printed.
///
/// # Errors
/// The first header that cannot be sent, or whose name is among `reserved`, in small letters: only the server sets these.
pub fn secret_headers<'a>(
    given: impl IntoIterator<Item = (&'a str, &'a str)>,
    reserved: &[&str],
) -> Result<HeaderMap, Invalid> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let wrong = |reason: &str| Invalid::new(format!("headers.{name}"), reason);
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("is not a header name"))?;
        if reserved.contains(&key.as_str()) {
            return Err(wrong("is set by the server itself"));
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong("has a value that no header can have"))?;
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_secret_and_what_cannot_be_sent_is_named() {
        let made = |name: &str, value: &str| secret_headers([(name, value)], &["content-type"]);
        let headers = made("X-Key", "hush").expect("a header");
        assert!(headers["x-key"].is_sensitive());
        for (name, value) in [("x key", "a"), ("x-key", "a\nb"), ("Content-Type", "a")] {
            let error = made(name, value).expect_err("it cannot be sent");
            assert_eq!(error.field, format!("headers.{name}"));
        }
    }
}
