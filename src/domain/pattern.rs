//! Glob patterns for the paths of a workspace.
//!
//! A pattern without `/` matches a name at any depth; a leading `/` anchors it at the directory of the search. In a
//! search, names that start with a dot are matched only by a part of the pattern that starts with a dot.

use globset::{GlobBuilder, GlobMatcher};

use super::path::below;

/// The maximum number of alternatives that the braces of one pattern may expand to.
const MAX_ALTERNATIVES: usize = 256;
/// The maximum number of parts of all alternatives together: each path is compared with all of them.
const MAX_PARTS: usize = 1_000;
/// The maximum length of a pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1_000;

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern {
    alternatives: Vec<Vec<Part>>,
    /// True if names that start with a dot are matched like all others.
    has_dots: bool,
}

/// A matcher for one part of a path.
#[derive(Debug)]
enum Part {
    /// `**`: any number of parts.
    Any,
    /// One part, and whether its pattern starts with a dot.
    One(GlobMatcher, bool),
}

impl Pattern {
    /// Compiles `pattern` for paths below `directory`.
    ///
    /// # Errors
    /// Returns the reason if the pattern is invalid.
    pub fn new(pattern: &str, directory: &str) -> Result<Self, String> {
        if pattern.trim().is_empty() {
            return Err("it is empty".to_owned());
        }
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(format!("it is longer than {MAX_PATTERN_BYTES} bytes"));
        }
        if pattern.split('/').any(|part| part == "..") {
            return Err("it must not contain ..".to_owned());
        }
        let relative = below(pattern, directory)
            .filter(|_| directory != "/")
            .unwrap_or(pattern);
        let mut alternatives = vec![];
        expand(relative, &mut alternatives)?;
        let counts = alternatives.iter().map(|alternative| names(alternative).count());
        if counts.sum::<usize>() > MAX_PARTS {
            return Err("its alternatives have too many parts".to_owned());
        }
        let any_depth = !pattern.contains('/');
        let alternatives = alternatives
            .iter()
            .map(|alternative| parts(alternative, any_depth))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            alternatives,
            has_dots: false,
        })
    }

    /// Compiles `pattern` for all paths, so that names that start with a dot are matched like all others.
    ///
    /// # Errors
    /// Returns the reason if the pattern is invalid.
    pub fn with_dots(pattern: &str) -> Result<Self, String> {
        Ok(Self {
            has_dots: true,
            ..Self::new(pattern, "/")?
        })
    }

    /// Returns whether `path`, relative to the directory, matches.
    pub fn matches(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').collect();
        self.alternatives
            .iter()
            .any(|parts| matches_parts(parts, &names, self.has_dots))
    }
}

/// Returns the folder that holds all paths that a pattern for all paths matches, or the path itself if the pattern matches
/// no other.
pub fn fixed_folder(pattern: &str) -> String {
    let plain = |part: &&str| !part.contains(['*', '?', '[', '{', '\\']);
    let parts: Vec<&str> = pattern
        .split('/')
        .filter(|part| !part.is_empty())
        .take_while(plain)
        .collect();
    format!("/{}", parts.join("/"))
}

/// Expands the braces of `pattern` into `into`: `{a,b}/c` becomes `a/c` and `b/c`.
fn expand(pattern: &str, into: &mut Vec<String>) -> Result<(), String> {
    let Some(Braces { open, choices, close }) = first_braces(pattern)? else {
        if into.len() == MAX_ALTERNATIVES {
            return Err("its braces yield too many alternatives".to_owned());
        }
        into.push(pattern.to_owned());
        return Ok(());
    };
    for choice in choices {
        expand(&format!("{}{choice}{}", &pattern[..open], &pattern[close + 1..]), into)?;
    }
    Ok(())
}

/// The first pair of braces in a pattern: the positions of the braces, and the alternatives.
struct Braces<'a> {
    open: usize,
    choices: Vec<&'a str>,
    close: usize,
}

fn first_braces(pattern: &str) -> Result<Option<Braces<'_>>, String> {
    let Some(open) = pattern.find('{') else {
        return Ok(None);
    };
    let mut depth = 0_usize;
    let mut from = open + 1;
    let mut choices = vec![];
    for (at, letter) in pattern.char_indices().skip_while(|(at, _)| *at < open) {
        match letter {
            '{' => depth += 1,
            ',' if depth == 1 => {
                choices.push(&pattern[from..at]);
                from = at + 1;
            }
            '}' if depth == 1 => {
                choices.push(&pattern[from..at]);
                return Ok(Some(Braces {
                    open,
                    choices,
                    close: at,
                }));
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    Err("a { has no }".to_owned())
}

/// Returns the parts of a pattern as texts.
fn names(pattern: &str) -> impl Iterator<Item = &str> {
    pattern.split('/').filter(|text| !text.is_empty() && *text != ".")
}

fn parts(pattern: &str, any_depth: bool) -> Result<Vec<Part>, String> {
    let mut parts = vec![];
    if any_depth {
        parts.push(Part::Any);
    }
    for text in names(pattern) {
        if text == "**" {
            parts.push(Part::Any);
            continue;
        }
        let glob = GlobBuilder::new(text)
            .literal_separator(true)
            .build()
            .map_err(|error| error.kind().to_string())?;
        parts.push(Part::One(glob.compile_matcher(), text.starts_with('.')));
    }
    Ok(parts)
}

/// Returns whether `names` match `parts`. Works from the end: `fit[n]` is true if the names from `n` on match the rest
/// of the parts.
fn matches_parts(parts: &[Part], names: &[&str], has_dots: bool) -> bool {
    let is_open = |name: &str| has_dots || !name.starts_with('.');
    let mut fit: Vec<bool> = (0..=names.len()).map(|at| at == names.len()).collect();
    for part in parts.iter().rev() {
        let mut next = vec![false; names.len() + 1];
        for at in (0..=names.len()).rev() {
            next[at] = match part {
                Part::Any => fit[at] || at < names.len() && is_open(names[at]) && next[at + 1],
                Part::One(glob, dotted) => {
                    at < names.len() && fit[at + 1] && (*dotted || is_open(names[at])) && glob.is_match(names[at])
                }
            };
        }
        if !next.contains(&true) {
            return false;
        }
        fit = next;
    }
    fit.first().copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_documented() {
        let cases = [
            ("*.md", "a.md", true),
            ("*.md", "deep/er/a.md", true),
            ("/*.md", "a.md", true),
            ("/*.md", "deep/a.md", false),
            ("deep/*.md", "deep/a.md", true),
            ("deep/*.md", "very/deep/a.md", false),
            ("**/*.md", "very/deep/a.md", true),
            ("**/*.md", "a.md", true),
            ("deep/**", "deep/a/b", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("*", ".env", false),
            (".*", "x/.env", true),
            ("**/a", ".git/a", false),
            (".git/**", ".git/a", true),
            ("[ab].txt", "b.txt", true),
            ("?.txt", "ab.txt", false),
            ("*.{md,txt}", "x/b.txt", true),
            ("{src/*,docs/**/*}.md", "docs/a/b.md", true),
            ("{src/*,docs/**/*}.md", "lib/b.md", false),
            ("{.a,b}", ".a", true),
            ("{.a,b}{1,2}", "b2", true),
        ];
        for (pattern, path, expected) in cases {
            let compiled = Pattern::new(pattern, "/").expect(pattern);
            assert_eq!(compiled.matches(path), expected, "{pattern} on {path}");
        }
        for path in [".env", "a/.b/.c"] {
            assert!(Pattern::with_dots("/**").expect("a pattern").matches(path), "{path}");
        }
    }

    #[test]
    fn a_pattern_may_repeat_the_directory() {
        let pattern = Pattern::new("/proj/*.md", "/proj").expect("a pattern");
        assert!(pattern.matches("a.md"));
        assert!(!pattern.matches("sub/a.md"));
    }

    #[test]
    fn invalid_patterns_are_refused() {
        let expensive = format!("{}{}", "{a,b}".repeat(8), "/a".repeat(400));
        for pattern in [
            &*expensive,
            "",
            " ",
            "[a",
            "{a,b",
            "../*",
            "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}",
        ] {
            assert!(Pattern::new(pattern, "/").is_err(), "{pattern}");
        }
    }
}
