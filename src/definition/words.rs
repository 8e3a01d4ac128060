//! Checks of single words, addresses, time-outs and patterns of paths.

use crate::domain::pattern::Pattern;

/// The shortest time-out, in seconds. Within a shorter one nothing would be done in time.
pub const SHORTEST_TIMEOUT_S: f64 = 0.01;

/// The longest time-out of a definition, in seconds.
pub const LONGEST_TIMEOUT_S: f64 = 86_400.0;

/// Returns the reason why `text` is not an address that can be called.
pub fn address_problem(text: &str) -> Option<String> {
    match url::Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => None,
        Ok(_) => Some("must begin with http:// or https:// and name a host".to_owned()),
        Err(error) => Some(format!(
            "is no address ({error}): it must begin with http:// or https:// and name a host"
        )),
    }
}

/// Returns the reason why `text` is not an address that can be called with a longer path. `added` says what is added to
/// the path, continuing "… added to its path".
pub(super) fn base_address_problem(text: &str, added: &str) -> Option<String> {
    let has_query = text.contains(['?', '#']);
    let query = has_query.then(|| format!("must have no query: {added} added to its path"));
    address_problem(text).or(query)
}

/// Returns the reason why a time-out in seconds is too short, or longer than `most`.
pub fn timeout_problem(seconds: f64, most: f64) -> Option<String> {
    let is_allowed = (SHORTEST_TIMEOUT_S..=most).contains(&seconds);
    (!is_allowed).then(|| format!("must be from {SHORTEST_TIMEOUT_S} to {most} seconds"))
}

/// Returns whether `word` consists of 1 to `most` letters, digits, `_`, `-` and `more`.
pub fn is_word(word: &str, most: usize, more: &str) -> bool {
    (1..=most).contains(&word.len())
        && word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-') || more.contains(c))
}

/// Returns the reason why a text is no pattern for absolute paths.
pub(super) fn path_problem(path: &str) -> Option<String> {
    match Pattern::with_dots(path) {
        _ if !path.starts_with('/') => Some(format!("`{path}` must begin with /")),
        _ if path
            .split('/')
            .any(|part| matches!(part, ".." | ".") || part.starts_with('~')) =>
        {
            Some(format!("`{path}` must contain neither . nor .. nor ~"))
        }
        Ok(_) => None,
        Err(why) => Some(format!("`{path}` is no pattern: {why}")),
    }
}
