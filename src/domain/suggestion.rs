//! Suggestions for misspelt words.

/// What is longer than this, in bytes, was not meant as a word that is known.
const LONGEST_WORD: usize = 128;

/// The word among `known` that was probably meant by `word`.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST_WORD {
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

/// Says which words are allowed, and first the one that was probably meant.
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
