//! The operations `ls`, `glob` and `grep`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::workspace::MAX_SEARCH;
use super::{FileContext, FileResult, SearchStop, abbreviated, normalise, pattern, text, truncated};
use crate::domain::path::below;
use crate::tool::literal::python_list;

/// The maximum number of paths in a result of `glob`.
const MAX_PATHS: usize = 1_000;
/// The maximum number of matching lines in a result of `grep`.
const MAX_MATCHES: usize = 1_000;
/// The maximum number of files that a result of `grep` names because they were not searched to their end.
const MAX_CUT_SHORT: usize = 10;

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
        "output_mode": {
            "type": "string", "enum": ["files_with_matches", "content", "count"], "default": "files_with_matches",
            "description": "What to show: the paths of the files, the lines too, or the number of lines in each file.",
        },
        "max_count": {
            "type": ["integer", "null"], "exclusiveMinimum": 0, "default": null,
            "description": "Stop after this many matching lines.",
        },
    })
}

pub(super) async fn list(context: &FileContext<'_>, args: List) -> Result<FileResult, String> {
    let directory = normalise(&args.path)?;
    let query = context.query(&directory).await?;
    let found = context.workspace.list(context.access(), &query).await?;
    let is_empty = found.entries.is_empty() && found.stop.is_none();
    if is_empty && context.workspace.is_missing(context.access(), &directory).await? {
        return Err(format!("Error: Directory '{directory}' not found"));
    }
    if is_empty {
        return Ok(FileResult::text(format!("No files found in {directory}")));
    }
    let names = python_list(found.entries.iter().map(String::as_str));
    let mut listed = truncated(names, "List a directory further down, or use glob.");
    if found.stop.is_some() {
        listed.push_str("\n[The list is not complete: there are too many files. List a directory further down.]");
    }
    Ok(FileResult::text(listed))
}

pub(super) async fn glob(context: &FileContext<'_>, args: Glob) -> Result<FileResult, String> {
    let directory = normalise(args.path.as_deref().unwrap_or("/"))?;
    let matcher = pattern(&args.pattern, &directory)?;
    let query = context.query(&directory).await?.with_filter(Some(matcher));
    let found = context.workspace.paths(context.access(), &query).await?;
    let paths: Vec<&String> = found
        .paths
        .iter()
        .filter(|path| below(path, &directory).is_some())
        .collect();
    if paths.is_empty() && found.stop.is_none() {
        return Ok(FileResult::text(format!(
            "No files found that match '{}' in {directory}",
            abbreviated(&args.pattern)
        )));
    }
    let mut names = python_list(paths.iter().take(MAX_PATHS).map(|path| path.as_str()));
    if paths.len() > MAX_PATHS {
        names.push_str(&format!(
            "\n[Only the first {MAX_PATHS} of {} paths are shown.]",
            paths.len()
        ));
    }
    if let Some(stop) = found.stop {
        names.push_str(&format!("\n{}", stopped(stop)));
    }
    Ok(FileResult::text(truncated(names, "Use a narrower pattern or path.")))
}

/// Returns the note about a search that ended early.
fn stopped(stop: SearchStop) -> String {
    let reason = match stop {
        SearchStop::Results => "as many results as can be shown".to_owned(),
        SearchStop::Time => format!("{} seconds", MAX_SEARCH.as_secs()),
        SearchStop::Files => "as many files as it may look at".to_owned(),
    };
    format!("[The search stopped after {reason}; there may be more. Search a narrower path.]")
}

pub(super) async fn grep(context: &FileContext<'_>, args: Grep) -> Result<FileResult, String> {
    if args.pattern.is_empty() {
        return Err("Error: the pattern is empty".to_owned());
    }
    if args.max_count == Some(0) {
        return Err("Error: max_count must be above 0".to_owned());
    }
    let max = args.max_count.unwrap_or(MAX_MATCHES).min(MAX_MATCHES);
    let root = normalise(args.path.as_deref().unwrap_or("/"))?;
    let filter = args.glob.as_deref().map(|glob| pattern(glob, &root)).transpose()?;
    let query = context.query(&root).await?.with_filter(filter);
    let query = query.at_most(max);
    let found = context.workspace.grep(context.access(), &query, &args.pattern).await?;
    if found.files.is_empty() && found.stop.is_none() {
        let hint = if args.pattern.contains('\n') {
            " Each line is searched alone, so no text with a line break is found."
        } else if looks_like_regex(&args.pattern) {
            " The pattern is taken literally; regular expressions are not understood."
        } else {
            ""
        };
        let said = format!("No matches found for '{}'.{hint}", abbreviated(&args.pattern));
        return Ok(FileResult::text(with_cut_short(said, &found.cut_short)));
    }
    let mut lines: Vec<String> = vec![];
    for hit in &found.files {
        match args.output_mode {
            Output::FilesWithMatches => lines.push(hit.path.clone()),
            Output::Count => lines.push(format!("{}: {}", hit.path, hit.lines.len())),
            Output::Content => {
                lines.push(format!("{}:", hit.path));
                lines.extend(hit.lines.iter().map(|(number, line)| format!("  {number}: {line}")));
            }
        }
    }
    match found.stop {
        Some(SearchStop::Results) => lines.push(format!(
            "[The search stopped after {max} matching lines; there may be more.]"
        )),
        Some(stop) => lines.push(stopped(stop)),
        None => {}
    }
    let said = truncated(lines.join("\n"), "Search a narrower path, or use output_mode count.");
    Ok(FileResult::text(with_cut_short(said, &found.cut_short)))
}

/// Returns a result with the names of the files that were not searched to their end, if there are any.
fn with_cut_short(said: String, paths: &[String]) -> String {
    if paths.is_empty() {
        return said;
    }
    let named = &paths[..paths.len().min(MAX_CUT_SHORT)];
    let more = match paths.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{said}\n[Searched only up to a line that is too long to be searched: {}{more}]",
        named.join(", ")
    )
}

/// Returns whether a pattern seems to be meant as a regular expression.
fn looks_like_regex(pattern: &str) -> bool {
    let tokens = [
        ".*", ".+", "\\d", "\\w", "\\s", "\\b", "\\.", "\\(", "[^", "(?", "|", "[a-", "[A-", "[0-",
    ];
    tokens.iter().any(|token| pattern.contains(token)) || pattern.starts_with('^') || pattern.ends_with('$')
}
