//! Suggestions for misspelt words.

/// The maximum length of a word that is compared, in bytes.
const MAX_WORD_BYTES: usize = 128;

/// Returns the word among `known` that is closest to `word`.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    let close = |other: &str| strsim::damerau_levenshtein(&word.to_lowercase(), &other.to_lowercase());
    known
        .into_iter()
        .map(|other| (close(other), other))
        .filter(|(distance, other)| *distance <= 1 + other.chars().count().max(word.chars().count()) / 4)
        .min()
        .map(|(_, other)| other)
}

/// Returns a text that lists the allowed words, beginning with the closest one.
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>, label: &str) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let list = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`? {label}: {list}"),
        None => format!("{label}: {list}"),
    }
}
