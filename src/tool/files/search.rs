//! Finding files and text in them.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Desk, Found, bounded, normalise, pattern, text};
use crate::domain::path::below;
use crate::domain::state::Encoding;
use crate::tool::literal::python_list;

/// How many paths `glob` shows at most.
const MOST_PATHS: usize = 1_000;
/// How many matching lines `grep` finds at most.
const MOST_MATCHES: usize = 1_000;
/// How many characters of a matching line are shown.
const SHOWN_OF_LINE: usize = 1_000;

/// The arguments of `ls`.
#[derive(Deserialize)]
pub(super) struct List {
    path: String,
}

/// The arguments of `glob`.
#[derive(Deserialize)]
pub(super) struct Glob {
    pattern: String,
    #[serde(default)]
    path: Option<String>,
}

/// The arguments of `grep`.
#[derive(Deserialize)]
pub(super) struct Grep {
    pattern: String,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    glob: Option<String>,
    #[serde(default)]
    output_mode: Output,
    #[serde(default)]
    max_count: Option<usize>,
}

/// What `grep` shows of its matches.
#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
enum Output {
    #[default]
    FilesWithMatches,
    Content,
    Count,
}

/// The matching lines of one file, with their numbers.
struct Hits {
    path: String,
    lines: Vec<(usize, String)>,
}

/// The argument that says where to search, as the model sees it.
pub(super) fn place() -> Value {
    json!({
        "type": ["string", "null"], "default": null,
        "description": "Where to search: a directory or a file. Everywhere when left out.",
    })
}

/// The arguments of `grep` as the model sees them.
pub(super) fn grep_properties() -> Value {
    json!({
        "pattern": text("The text to look for, taken literally."),
        "path": place(),
        "glob": {
            "type": ["string", "null"], "default": null,
            "description": "Search only files that match this glob pattern.",
        },
        "output_mode": {"enum": ["files_with_matches", "content", "count"], "default": "files_with_matches"},
        "max_count": {
            "type": ["integer", "null"], "exclusiveMinimum": 0, "default": null,
            "description": "Stop after this many matching lines.",
        },
    })
}

pub(super) async fn list(desk: &Desk<'_>, wish: List) -> Result<Found, String> {
    let directory = normalise(&wish.path)?;
    let paths = desk.visible(&directory).await?;
    let mut entries = BTreeSet::new();
    for path in &paths {
        match below(path, &directory).and_then(|rest| rest.split_once('/')) {
            Some((name, _)) => entries.insert(format!("{}/{name}/", directory.trim_end_matches('/'))),
            None => entries.insert(path.clone()),
        };
    }
    if entries.is_empty() {
        return Ok(Found::text(format!("No files found in {directory}")));
    }
    let names = python_list(entries.iter().map(String::as_str));
    Ok(Found::text(bounded(
        names,
        "List a directory further down, or use glob.",
    )))
}

pub(super) async fn glob(desk: &Desk<'_>, wish: Glob) -> Result<Found, String> {
    let directory = normalise(wish.path.as_deref().unwrap_or("/"))?;
    let wanted = pattern(&wish.pattern, &directory)?;
    let paths = desk.visible(&directory).await?;
    let matches = |path: &&String| below(path, &directory).is_some_and(|rest| wanted.matches(rest));
    let found: Vec<&String> = paths.iter().filter(matches).collect();
    if found.is_empty() {
        return Ok(Found::text(format!(
            "No files found that match '{}' in {directory}",
            wish.pattern
        )));
    }
    let mut names = python_list(found.iter().take(MOST_PATHS).map(|path| path.as_str()));
    if found.len() > MOST_PATHS {
        names.push_str(&format!(
            "\n[Only the first {MOST_PATHS} of {} paths are shown.]",
            found.len()
        ));
    }
    Ok(Found::text(bounded(names, "Use a narrower pattern or path.")))
}

pub(super) async fn grep(desk: &Desk<'_>, wish: Grep) -> Result<Found, String> {
    if wish.pattern.is_empty() {
        return Err("Error: the pattern is empty".to_owned());
    }
    if wish.max_count == Some(0) {
        return Err("Error: max_count must be above 0".to_owned());
    }
    let most = wish.max_count.unwrap_or(MOST_MATCHES).min(MOST_MATCHES);
    let (hits, is_cut) = hits(desk, &wish, most).await?;
    if hits.is_empty() {
        let hint = if looks_like_regex(&wish.pattern) {
            " The pattern is taken literally; regular expressions are not understood."
        } else {
            ""
        };
        return Ok(Found::text(format!("No matches found for '{}'.{hint}", wish.pattern)));
    }
    let mut lines: Vec<String> = vec![];
    for hit in &hits {
        match wish.output_mode {
            Output::FilesWithMatches => lines.push(hit.path.clone()),
            Output::Count => lines.push(format!("{}: {}", hit.path, hit.lines.len())),
            Output::Content => {
                lines.push(format!("{}:", hit.path));
                lines.extend(hit.lines.iter().map(|(number, line)| format!("  {number}: {line}")));
            }
        }
    }
    if is_cut {
        lines.push(format!(
            "[The search stopped after {most} matching lines; there may be more.]"
        ));
    }
    Ok(Found::text(bounded(
        lines.join("\n"),
        "Search a narrower path, or use output_mode count.",
    )))
}

/// The first `most` matching lines, and whether the search stopped there.
async fn hits(desk: &Desk<'_>, wish: &Grep, most: usize) -> Result<(Vec<Hits>, bool), String> {
    let root = normalise(wish.path.as_deref().unwrap_or("/"))?;
    let filter = wish.glob.as_deref().map(|glob| pattern(glob, &root)).transpose()?;
    let mut hits = vec![];
    let mut left = most;
    for path in desk.visible(&root).await? {
        // A file that is named itself lies in no directory: its name stands for it.
        let place = below(&path, &root).unwrap_or_else(|| path.rsplit('/').next().unwrap_or(&path));
        if filter.as_ref().is_some_and(|filter| !filter.matches(place)) {
            continue;
        }
        let Some(file) = desk.workspace.read(desk.state, &path).await? else {
            continue;
        };
        if file.encoding == Encoding::Base64 {
            continue;
        }
        let matching = file
            .content
            .lines()
            .enumerate()
            .filter(|(_, line)| line.contains(&wish.pattern));
        let lines: Vec<_> = matching
            .take(left + 1)
            .map(|(at, line)| (at + 1, shown(line)))
            .collect();
        if lines.len() > left {
            let lines: Vec<_> = lines.into_iter().take(left).collect();
            hits.extend((!lines.is_empty()).then_some(Hits { path, lines }));
            return Ok((hits, true));
        }
        left -= lines.len();
        hits.extend((!lines.is_empty()).then_some(Hits { path, lines }));
    }
    Ok((hits, false))
}

fn shown(line: &str) -> String {
    match line.char_indices().nth(SHOWN_OF_LINE) {
        None => line.to_owned(),
        Some((end, _)) => format!("{} [cut]", &line[..end]),
    }
}

/// Whether somebody seems to have meant a regular expression.
fn looks_like_regex(pattern: &str) -> bool {
    let tokens = [
        ".*", ".+", "\\d", "\\w", "\\s", "\\b", "\\.", "\\(", "[^", "(?", "|", "[a-", "[A-", "[0-",
    ];
    tokens.iter().any(|token| pattern.contains(token)) || pattern.starts_with('^') || pattern.ends_with('$')
}
