//! Searching the texts of files, with the parts that ripgrep is made of.

use std::io::{self, Cursor, Read};
use std::ops::ControlFlow;

use cap_std::fs::Dir;
use grep_regex::RegexMatcherBuilder;
use grep_searcher::sinks::Lossy;
use grep_searcher::{BinaryDetection, SearcherBuilder};
use tokio::time::Instant;

use super::content::open;
use super::walk::walk;
use crate::tool::files::workspace::{FileMatches, FileQuery, FoundLines, SearchStop, shortened};

/// The longest line that is searched, in bytes. A file with a longer one is not searched from there on.
const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;

/// The byte order mark. The searcher leaves it out of the first line of a text in UTF-8, to which it belongs for all other file
/// tools.
const MARK: &str = "\u{feff}";
/// The size of the mark in UTF-8, in bytes.
const MARK_BYTES: u64 = 3;

/// Returns whether a search ended with this error because of a line that is too long: it is the only one of the searcher's
/// own.
fn is_long_line(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Other && error.raw_os_error().is_none()
}

/// A file that ends when the time is over.
struct Timed<R> {
    file: R,
    deadline: Instant,
}

impl<R: Read> Read for Timed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if Instant::now() >= self.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.file.read(buffer)
    }
}

/// Returns the lines with `text` in the files that the query admits. Binary files are left out.
pub(super) fn grep(dir: &Dir, query: &FileQuery, text: &str, uses_ignore_files: bool) -> Result<FoundLines, String> {
    // A line contains no line break.
    if text.contains('\n') {
        return Ok(FoundLines::default());
    }
    let matcher = RegexMatcherBuilder::new()
        .line_terminator(Some(b'\n'))
        .fixed_strings(true)
        .build_literals(&[text])
        .map_err(|_| "Error: the pattern is too long".to_owned())?;
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .line_number(true)
        .heap_limit(Some(MAX_LINE_BYTES))
        .build();
    let mut found = FoundLines::default();
    let mut left = query.max;
    let stop = walk(dir, query, uses_ignore_files, &mut |path, real| {
        // A file that cannot be read is left out, like one that is gone by now.
        let Ok(Some((mut file, _))) = open(dir, real) else {
            return ControlFlow::Continue(());
        };
        let mut start = vec![];
        if file.by_ref().take(MARK_BYTES).read_to_end(&mut start).is_err() {
            return ControlFlow::Continue(());
        }
        let has_mark = start == MARK.as_bytes();
        let mut lines = vec![];
        let mut is_cut = false;
        let sink = Lossy(|number, line| {
            if lines.len() >= left {
                is_cut = true;
                return Ok(false);
            }
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            let line = line.trim_end_matches(['\r', '\n']);
            lines.push(match has_mark && number == 1 {
                true => (number, shortened(&format!("{MARK}{line}"), text)),
                false => (number, shortened(line, text)),
            });
            Ok(true)
        });
        let timed = Timed {
            file: Cursor::new(start).chain(file),
            deadline: query.deadline(),
        };
        let searched = searcher.search_reader(&matcher, timed, sink);
        left -= lines.len();
        if !lines.is_empty() {
            found.files.push(FileMatches {
                path: path.to_owned(),
                lines,
            });
        }
        match searched {
            _ if is_cut => ControlFlow::Break(SearchStop::Results),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => ControlFlow::Break(SearchStop::Time),
            Err(error) if is_long_line(&error) => {
                found.cut_short.push(path.to_owned());
                ControlFlow::Continue(())
            }
            Ok(()) | Err(_) => ControlFlow::Continue(()),
        }
    })?;
    found.stop = stop;
    Ok(found)
}
