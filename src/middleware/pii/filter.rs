//! Rewrites a text with personal data: at once, or while it is streamed.

use std::fmt::Write as _;
use std::sync::Arc;

use regex_automata::hybrid::dfa;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::detector::{Detector, LONGEST_CANDIDATE, PiiKind, Probe, next_char};
use crate::domain::machine::Failure;
use crate::middleware::TextFilter;

/// The class of the failure of a run that must not go on with personal data.
pub(super) const FAILURE: &str = "PIIDetectionError";
/// The number of bytes of a digest that are shown.
const SHOWN_DIGEST: usize = 4;
/// The text that masking puts in the place of a hidden part.
const HIDDEN: &str = "****";

/// The treatment of personal data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PiiStrategy {
    /// The data is replaced by the name of its kind.
    #[default]
    Redact,
    /// Most of the data is replaced by `*`.
    Mask,
    /// The data is replaced by a digest of it, so that equal data stays recognisable.
    Hash,
    /// Text with such data is not taken, and an answer with it ends the run.
    Block,
}

/// A rule about one kind of personal data. Cheap to clone.
#[derive(Clone)]
pub(super) struct PiiRule {
    pub(super) name: Arc<str>,
    pub(super) detector: Arc<Detector>,
    pub(super) strategy: PiiStrategy,
}

impl PiiRule {
    /// Returns the text without the personal data; `None` if there is none in it.
    ///
    /// # Errors
    /// The failure, if text with such data is blocked.
    pub(super) fn rewrite(&self, text: &str) -> Result<Option<String>, Failure> {
        if self.detector.find(text, 0).is_none() {
            return Ok(None);
        }
        if self.strategy == PiiStrategy::Block {
            return Err(self.failure());
        }
        let mut rewritten = String::with_capacity(text.len());
        self.rewrite_from(text, 0, &mut rewritten);
        Ok(Some(rewritten))
    }

    /// Returns whether there is such data in a text.
    pub(super) fn is_in(&self, text: &str) -> bool {
        self.detector.find(text, 0).is_some()
    }

    /// Adds the text from `from` on to `rewritten`, without the personal data.
    fn rewrite_from(&self, text: &str, from: usize, rewritten: &mut String) {
        let mut at = from;
        while let Some((start, end)) = self.detector.find(text, at) {
            rewritten.push_str(&text[at..start]);
            let found = &text[start..end];
            match self.is_replaced(text, start, end) {
                true => rewritten.push_str(found),
                false => rewritten.push_str(&self.replacement(found)),
            }
            at = end;
        }
        rewritten.push_str(&text[at..]);
    }

    /// Returns the failure of a run with such data.
    pub(super) fn failure(&self) -> Failure {
        let message = format!("The text contains personal data that is blocked: {}.", self.name);
        Failure::new(FAILURE, message)
    }

    /// Returns whether what was found is a part of an earlier replacement, which a pattern of one's own may fit, too.
    fn is_replaced(&self, text: &str, start: usize, end: usize) -> bool {
        if self.detector.kind() != PiiKind::Custom {
            return false;
        }
        let sample = self.replacement("");
        let is_replacement = |place: &str| match self.strategy {
            PiiStrategy::Redact | PiiStrategy::Block => place == sample,
            PiiStrategy::Hash => {
                let digest = place.strip_prefix(&format!("<{}_hash:", self.name));
                let digest = digest.and_then(|rest| rest.strip_suffix('>'));
                digest.is_some_and(|digest| digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
            }
            PiiStrategy::Mask => false,
        };
        let first = end.saturating_sub(sample.len());
        (first..=start).any(|from| text.get(from..from + sample.len()).is_some_and(&is_replacement))
    }

    fn replacement(&self, found: &str) -> String {
        match self.strategy {
            PiiStrategy::Redact | PiiStrategy::Block => format!("[REDACTED_{}]", self.name.to_uppercase()),
            PiiStrategy::Hash => {
                let digest = Sha256::digest(found.as_bytes());
                let mut text = format!("<{}_hash:", self.name);
                for byte in digest.iter().take(SHOWN_DIGEST) {
                    // Writing to a text does not fail.
                    let _ = write!(text, "{byte:02x}");
                }
                text.push('>');
                text
            }
            PiiStrategy::Mask => mask(self.detector.kind(), found),
        }
    }
}

/// Hides most of what was found.
fn mask(kind: PiiKind, found: &str) -> String {
    let last = |count: usize, of: &str| {
        let characters: Vec<char> = of.chars().filter(|c| c.is_alphanumeric()).collect();
        characters[characters.len().saturating_sub(count)..]
            .iter()
            .collect::<String>()
    };
    match kind {
        PiiKind::Email => {
            let first = found.chars().next().map(String::from).unwrap_or_default();
            let domain = found.rsplit('.').next().unwrap_or_default();
            format!("{first}{HIDDEN}@{HIDDEN}.{domain}")
        }
        PiiKind::CreditCard => format!("{HIDDEN} {HIDDEN} {HIDDEN} {}", last(4, found)),
        PiiKind::Ip => match found.rsplit_once('.') {
            Some((_, part)) => format!("*.*.*.{part}"),
            None => format!("{HIDDEN}:{}", last(4, found.rsplit(':').next().unwrap_or_default())),
        },
        PiiKind::MacAddress => format!("**:**:**:**:**:{}", last(2, found)),
        PiiKind::Custom if found.chars().count() > 8 => format!("{HIDDEN}{}", last(4, found)),
        PiiKind::Url | PiiKind::Custom => HIDDEN.to_owned(),
    }
}

/// Rewrites a text that arrives in pieces. A piece is held back while it may be a part of personal data.
pub(super) struct PiiFilter {
    rule: PiiRule,
    cache: dfa::Cache,
    /// The character before the text that is held back, and that text.
    buffer: String,
    /// The start of the text that is held back.
    from: usize,
    /// True if a candidate became too long to look for its end: the rest of the text is held back.
    holds_all: bool,
    /// True if data was found that is blocked.
    is_blocked: bool,
}

impl PiiFilter {
    pub(super) fn new(rule: &PiiRule) -> Self {
        Self {
            cache: rule.detector.cache(),
            rule: rule.clone(),
            buffer: String::new(),
            from: 0,
            holds_all: false,
            is_blocked: false,
        }
    }

    /// Passes on what is known to be no part of personal data, or replaces it.
    fn release(&mut self, shown: &mut String) {
        while self.from < self.buffer.len() {
            let probe = self.rule.detector.probe(&mut self.cache, &self.buffer, self.from);
            let end = match probe {
                Probe::Open => break,
                Probe::Settled(end) => end,
            };
            match end {
                Some(_) if self.rule.strategy == PiiStrategy::Block => {
                    self.is_blocked = true;
                    return;
                }
                Some(end) => {
                    shown.push_str(&self.rule.replacement(&self.buffer[self.from..end]));
                    self.from = end;
                }
                None => {
                    let end = next_char(&self.buffer, self.from);
                    shown.push_str(&self.buffer[self.from..end]);
                    self.from = end;
                }
            }
        }
        self.holds_all = self.buffer.len() - self.from > LONGEST_CANDIDATE;
        let last = self.buffer[..self.from].char_indices().next_back();
        let before = last.map_or(0, |(at, _)| at);
        self.buffer.drain(..before);
        self.from -= before;
    }
}

impl TextFilter for PiiFilter {
    fn push(&mut self, text: &str) -> String {
        let mut shown = String::new();
        if self.is_blocked {
            return shown;
        }
        self.buffer.push_str(text);
        if !self.holds_all {
            self.release(&mut shown);
        }
        shown
    }

    fn finish(&mut self) -> Result<String, Failure> {
        let found = || self.rule.detector.find(&self.buffer, self.from).is_some();
        if self.is_blocked || self.rule.strategy == PiiStrategy::Block && found() {
            return Err(self.rule.failure());
        }
        let mut shown = String::new();
        self.rule.rewrite_from(&self.buffer, self.from, &mut shown);
        self.buffer.clear();
        self.from = 0;
        Ok(shown)
    }
}
