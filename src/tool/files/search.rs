//! The operations `ls`, `glob` and `grep`.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{FileContext, FileResult, normalise, pattern, text, truncated};
use crate::domain::path::below;
use crate::domain::state::Encoding;
use crate::tool::literal::python_list;

/// The maximum number of paths in a result of `glob`.
const MAX_PATHS: usize = 1_000;
/// The maximum number of matching lines in a result of `grep`.
const MAX_MATCHES: usize = 1_000;
/// The maximum length of a line in a result of `grep`, in characters.
const MAX_LINE_CHARS: usize = 1_000;

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

/// The output modes of `grep`.
#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
enum Output {
    #[default]
    FilesWithMatches,
    Content,
    Count,
}

/// The matching lines of one file, with their line numbers.
struct FileMatches {
    path: String,
    lines: Vec<(usize, String)>,
}

/// Returns the JSON Schema of the argument `path`.
pub(super) fn path_schema() -> Value {
    json!({
        "type": ["string", "null"], "default": null,
        "description": "Where to search: a directory or a file. Everywhere when left out.",
    })
}

/// Returns the JSON Schema of the arguments of `grep`.
pub(super) fn grep_properties() -> Value {
    json!({
        "pattern": text("The text to look for, taken literally."),
        "path": path_schema(),
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

pub(super) async fn list(context: &FileContext<'_>, args: List) -> Result<FileResult, String> {
    let directory = normalise(&args.path)?;
    let paths = context.visible(&directory).await?;
    let mut entries = BTreeSet::new();
    for path in &paths {
        match below(path, &directory).and_then(|rest| rest.split_once('/')) {
            Some((name, _)) => entries.insert(format!("{}/{name}/", directory.trim_end_matches('/'))),
            None => entries.insert(path.clone()),
        };
    }
    if entries.is_empty() {
        return Ok(FileResult::text(format!("No files found in {directory}")));
    }
    let names = python_list(entries.iter().map(String::as_str));
    Ok(FileResult::text(truncated(
        names,
        "List a directory further down, or use glob.",
    )))
}

pub(super) async fn glob(context: &FileContext<'_>, args: Glob) -> Result<FileResult, String> {
    let directory = normalise(args.path.as_deref().unwrap_or("/"))?;
    let matcher = pattern(&args.pattern, &directory)?;
    let paths = context.visible(&directory).await?;
    let matches = |path: &&String| below(path, &directory).is_some_and(|rest| matcher.matches(rest));
    let found: Vec<&String> = paths.iter().filter(matches).collect();
    if found.is_empty() {
        return Ok(FileResult::text(format!(
            "No files found that match '{}' in {directory}",
            args.pattern
        )));
    }
    let mut names = python_list(found.iter().take(MAX_PATHS).map(|path| path.as_str()));
    if found.len() > MAX_PATHS {
        names.push_str(&format!(
            "\n[Only the first {MAX_PATHS} of {} paths are shown.]",
            found.len()
        ));
    }
    Ok(FileResult::text(truncated(names, "Use a narrower pattern or path.")))
}

pub(super) async fn grep(context: &FileContext<'_>, args: Grep) -> Result<FileResult, String> {
    if args.pattern.is_empty() {
        return Err("Error: the pattern is empty".to_owned());
    }
    if args.max_count == Some(0) {
        return Err("Error: max_count must be above 0".to_owned());
    }
    let max = args.max_count.unwrap_or(MAX_MATCHES).min(MAX_MATCHES);
    let (hits, is_cut) = find_matches(context, &args, max).await?;
    if hits.is_empty() {
        let hint = if looks_like_regex(&args.pattern) {
            " The pattern is taken literally; regular expressions are not understood."
        } else {
            ""
        };
        return Ok(FileResult::text(format!(
            "No matches found for '{}'.{hint}",
            args.pattern
        )));
    }
    let mut lines: Vec<String> = vec![];
    for hit in &hits {
        match args.output_mode {
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
            "[The search stopped after {max} matching lines; there may be more.]"
        ));
    }
    Ok(FileResult::text(truncated(
        lines.join("\n"),
        "Search a narrower path, or use output_mode count.",
    )))
}

/// Returns the first `max` matching lines, and whether there are more.
async fn find_matches(context: &FileContext<'_>, args: &Grep, max: usize) -> Result<(Vec<FileMatches>, bool), String> {
    let root = normalise(args.path.as_deref().unwrap_or("/"))?;
    let filter = args.glob.as_deref().map(|glob| pattern(glob, &root)).transpose()?;
    let mut hits = vec![];
    let mut remaining = max;
    for path in context.visible(&root).await? {
        // `path` may name a file instead of a directory; the glob then applies to its name.
        let relative = below(&path, &root).unwrap_or_else(|| path.rsplit('/').next().unwrap_or(&path));
        if filter.as_ref().is_some_and(|filter| !filter.matches(relative)) {
            continue;
        }
        let Some(file) = context.workspace.read(context.state, &path).await? else {
            continue;
        };
        if file.encoding == Encoding::Base64 {
            continue;
        }
        let matching = file
            .content
            .lines()
            .enumerate()
            .filter(|(_, line)| line.contains(&args.pattern));
        let lines: Vec<_> = matching
            .take(remaining + 1)
            .map(|(at, line)| (at + 1, truncated_line(line)))
            .collect();
        if lines.len() > remaining {
            let lines: Vec<_> = lines.into_iter().take(remaining).collect();
            hits.extend((!lines.is_empty()).then_some(FileMatches { path, lines }));
            return Ok((hits, true));
        }
        remaining -= lines.len();
        hits.extend((!lines.is_empty()).then_some(FileMatches { path, lines }));
    }
    Ok((hits, false))
}

fn truncated_line(line: &str) -> String {
    match line.char_indices().nth(MAX_LINE_CHARS) {
        None => line.to_owned(),
        Some((end, _)) => format!("{} [cut]", &line[..end]),
    }
}

/// Returns whether a pattern seems to be meant as a regular expression.
fn looks_like_regex(pattern: &str) -> bool {
    let tokens = [
        ".*", ".+", "\\d", "\\w", "\\s", "\\b", "\\.", "\\(", "[^", "(?", "|", "[a-", "[A-", "[0-",
    ];
    tokens.iter().any(|token| pattern.contains(token)) || pattern.starts_with('^') || pattern.ends_with('$')
}
