//! Finds personal data of one kind in a text.
//!
//! Each search for a pattern runs in time linear to the text. A candidate that a pattern finds is checked where a pattern
//! cannot say all: the check digit of a card, the parts of an address. Such candidates are short: many of them that are
//! refused cost time linear to the text, too. For the same reason only the beginning of a URL is searched.

use std::net::{Ipv4Addr, Ipv6Addr};

use regex_automata::hybrid::dfa;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind, meta};

/// The maximum length of a pattern, in bytes.
const LONGEST_PATTERN: usize = 1_000;
/// The maximum size of a compiled pattern, in bytes.
const LARGEST_PATTERN: usize = 1024 * 1024;
/// The number of bytes of a candidate after which a stream no longer looks for its end.
pub(super) const LONGEST_CANDIDATE: usize = 1_024;

/// The fewest and the most digits of the number of a card.
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;

/// The kinds of personal data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PiiKind {
    Email,
    CreditCard,
    Ip,
    MacAddress,
    Url,
    /// Whatever matches a pattern of the definition.
    Custom,
}

impl PiiKind {
    /// The names of the kinds with a pattern of their own.
    pub(super) const NAMES: [&str; 5] = ["email", "credit_card", "ip", "mac_address", "url"];

    /// Returns the kind of this name.
    pub(super) fn named(name: &str) -> Self {
        match name {
            "email" => Self::Email,
            "credit_card" => Self::CreditCard,
            "ip" => Self::Ip,
            "mac_address" => Self::MacAddress,
            "url" => Self::Url,
            _ => Self::Custom,
        }
    }

    /// Returns the pattern of the candidates; none for a custom kind.
    fn pattern(self) -> Option<&'static str> {
        match self {
            Self::Email => Some(r"[\p{L}\p{N}._%+\-]+@[\p{L}\p{N}.\-]+\.\p{L}{2,}"),
            Self::CreditCard => Some(r"[0-9](?:[ \-]?[0-9]){12,18}"),
            Self::Ip => {
                Some(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:\.[0-9]{1,3}){0,3}")
            }
            Self::MacAddress => Some(r"[0-9A-Fa-f]{2}(?:[:\-][0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2}"),
            Self::Url => Some(r#"(?i-u:https?|ftp)://[^\s<>"'`]+|(?i-u:www)\.[^\s<>"'`]+"#),
            Self::Custom => None,
        }
    }

    /// Returns the pattern of the beginning of a candidate whose end is easy to find; none for other kinds.
    fn beginning(self) -> Option<&'static str> {
        match self {
            Self::Url => Some(r#"(?i-u:https?|ftp)://[^\s<>"'`]|(?i-u:www)\.[^\s<>"'`]"#),
            Self::Email | Self::CreditCard | Self::Ip | Self::MacAddress | Self::Custom => None,
        }
    }

    /// Returns whether a candidate after this character is none, whatever it is.
    fn is_cut_off(self, before: Option<char>) -> bool {
        self == Self::Url && before.is_some_and(char::is_alphanumeric)
    }
}

/// A detector of one kind of personal data.
pub(super) struct Detector {
    kind: PiiKind,
    regex: meta::Regex,
    dfa: dfa::DFA,
}

/// The knowledge about a match at one place of a text that may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    /// More text may make a match, or a longer one.
    Open,
    /// A match ends here, or there is none.
    Settled(Option<usize>),
}

impl Detector {
    /// Creates a detector; `pattern` is that of a custom kind.
    ///
    /// # Errors
    /// The reason why the pattern cannot be used.
    pub(super) fn new(kind: PiiKind, pattern: &str) -> Result<Self, String> {
        let pattern = kind.pattern().unwrap_or(pattern);
        if pattern.is_empty() || pattern.len() > LONGEST_PATTERN {
            return Err(format!("must be a regular expression of 1 to {LONGEST_PATTERN} bytes"));
        }
        let hir = syntax::parse(pattern).map_err(|error| format!("is no regular expression: {error}"))?;
        if hir.properties().look_set().contains_word_unicode() {
            return Err(r"must write a word boundary as `(?-u:\b)`, which is about ASCII letters".to_owned());
        }
        if hir.properties().minimum_len().unwrap_or(0) == 0 {
            return Err("matches an empty text; it must match at least one character".to_owned());
        }
        let too_large = |_| format!("is too large: compiled it takes more than {LARGEST_PATTERN} bytes");
        let limits = meta::Config::new()
            .nfa_size_limit(Some(LARGEST_PATTERN))
            .onepass_size_limit(Some(LARGEST_PATTERN))
            .dfa(false);
        let regex = meta::Builder::new()
            .configure(limits)
            .build(kind.beginning().unwrap_or(pattern));
        let regex = regex.map_err(|_| too_large(()))?;
        let config = dfa::DFA::config().match_kind(MatchKind::LeftmostFirst);
        let thompson = regex_automata::nfa::thompson::Config::new().nfa_size_limit(Some(LARGEST_PATTERN));
        let dfa = dfa::DFA::builder().configure(config).thompson(thompson).build(pattern);
        let dfa = dfa.map_err(|_| too_large(()))?;
        Ok(Self { kind, regex, dfa })
    }

    pub(super) fn kind(&self) -> PiiKind {
        self.kind
    }

    pub(super) fn cache(&self) -> dfa::Cache {
        self.dfa.create_cache()
    }

    /// Looks for a match that begins at `at`, in a text that may go on. Only the character before `at` matters of the
    /// text before it.
    pub(super) fn probe(&self, cache: &mut dfa::Cache, text: &str, at: usize) -> Probe {
        let input = Input::new(text).range(at..).anchored(Anchored::Yes);
        let Ok(mut state) = self.dfa.start_state_forward(cache, &input) else {
            return Probe::Open;
        };
        let mut end = None;
        for (offset, byte) in text.as_bytes()[at..].iter().take(LONGEST_CANDIDATE + 1).enumerate() {
            match self.dfa.next_state(cache, state, *byte) {
                Ok(next) => state = next,
                Err(_) => return Probe::Open,
            }
            if state.is_match() {
                end = Some(at + offset);
            } else if state.is_dead() {
                return Probe::Settled(end.and_then(|end| self.checked(text, at, end)));
            } else if state.is_quit() {
                return Probe::Open;
            }
        }
        Probe::Open
    }

    /// Returns the first match at or after `from`, in a text that is complete.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let mut from = from;
        while from < text.len() {
            let found = self.regex.find(Input::new(text).range(from..))?;
            let start = found.start();
            if !self.kind.is_cut_off(text[..start].chars().next_back())
                && let Some(end) = self.checked(text, start, self.end_of(text, found.end()))
            {
                return Some((start, end));
            }
            from = next_char(text, start);
        }
        None
    }

    /// Returns the end of a candidate of which the search has found this end.
    fn end_of(&self, text: &str, found: usize) -> usize {
        if self.kind.beginning().is_none() {
            return found;
        }
        let is_outside = |letter: char| letter.is_whitespace() || "<>\"'`".contains(letter);
        text[found..]
            .find(is_outside)
            .map_or(text.len(), |length| found + length)
    }

    /// Returns the end of the match in a candidate, if there is one.
    fn checked(&self, text: &str, start: usize, end: usize) -> Option<usize> {
        let before = text[..start].chars().next_back();
        let after = text[end..].chars().next();
        let candidate = &text[start..end];
        match self.kind {
            PiiKind::Email | PiiKind::Custom => Some(end),
            PiiKind::CreditCard => card(before, candidate, after).map(|length| start + length),
            PiiKind::Ip => is_address(before, candidate, after).then_some(end),
            PiiKind::MacAddress => {
                let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == ':' || c == '-');
                (!is_part(before) && !is_part(after)).then_some(end)
            }
            // Punctuation after an address belongs to the sentence.
            PiiKind::Url => {
                let length = candidate
                    .trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '}'])
                    .len();
                Some(start + length).filter(|_| !self.kind.is_cut_off(before))
            }
        }
    }
}

/// Returns the end of the character at `at`.
pub(super) fn next_char(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(1, char::len_utf8)
}

/// Returns the length of the number of a card at the start of a candidate.
fn card(before: Option<char>, candidate: &str, after: Option<char>) -> Option<usize> {
    if before.is_some_and(|c| c.is_ascii_digit()) {
        return None;
    }
    let digits: Vec<(usize, u32)> = candidate
        .char_indices()
        .filter_map(|(at, c)| Some((at + 1, c.to_digit(10)?)))
        .collect();
    let is_number_at = |count: usize| {
        let end = digits.get(count - 1)?.0;
        let next = candidate[end..].chars().next().or(after);
        let ends_here = !next.is_some_and(|c| c.is_ascii_digit());
        (ends_here && is_luhn(&digits[..count])).then_some(end)
    };
    CARD_DIGITS.rev().find_map(is_number_at)
}

/// Returns whether the last of these digits is the check digit of the others.
fn is_luhn(digits: &[(usize, u32)]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, (_, digit))| match at % 2 {
            0 => *digit,
            _ if *digit > 4 => digit * 2 - 9,
            _ => digit * 2,
        })
        .sum();
    sum.is_multiple_of(10) && digits.iter().any(|(_, digit)| *digit != 0)
}

/// Returns whether a candidate is an address of IPv4 or IPv6.
fn is_address(before: Option<char>, candidate: &str, after: Option<char>) -> bool {
    let goes_on = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    if goes_on(before) || goes_on(after) {
        return false;
    }
    let is_v6 = || !matches!(before, Some(':')) && candidate.len() > 2 && candidate.parse::<Ipv6Addr>().is_ok();
    candidate.parse::<Ipv4Addr>().is_ok() || is_v6()
}
