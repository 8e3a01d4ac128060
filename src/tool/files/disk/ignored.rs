//! Ignore files: `.gitignore` and `.ignore`, as git and ripgrep read them.

use std::io::Read;

use cap_std::fs::Dir;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::content::open;

/// The maximum size of an ignore file, in bytes. What is beyond is not read.
const MAX_BYTES: u64 = 64 * 1024;
/// The names of ignore files. The later ones precede.
const NAMES: [&str; 2] = [".gitignore", ".ignore"];

/// The ignore files of a directory and those above it, outermost first.
#[derive(Clone, Default)]
pub(super) struct Ignored(Vec<Gitignore>);

impl Ignored {
    /// Returns these with the ignore files of the directory at `path`.
    pub(super) fn with(&self, dir: &Dir, path: &str) -> Self {
        let mut all = self.clone();
        all.0.extend(NAMES.iter().filter_map(|name| read(dir, path, name)));
        all
    }

    /// Returns the ignore files of all directories above `path`.
    pub(super) fn above(dir: &Dir, path: &str) -> Self {
        let mut all = Self::default();
        let ends = path.char_indices().filter(|(_, letter)| *letter == '/');
        for (end, _) in ends {
            if path != "/" {
                let directory = path.get(..end).filter(|text| !text.is_empty()).unwrap_or("/");
                all = all.with(dir, directory);
            }
        }
        all
    }

    /// Returns whether searches leave out what is at `path`.
    pub(super) fn excludes(&self, path: &str, is_dir: bool) -> bool {
        for file in self.0.iter().rev() {
            match file.matched(path, is_dir) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }
}

fn read(dir: &Dir, directory: &str, name: &str) -> Option<Gitignore> {
    let path = format!("{}/{name}", directory.trim_end_matches('/'));
    let (file, _) = open(dir, &path).ok()??;
    let mut bytes = vec![];
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let mut builder = GitignoreBuilder::new(directory);
    for line in String::from_utf8_lossy(&bytes).lines() {
        // A line that is no pattern excludes nothing.
        if let Err(error) = builder.add_line(None, line) {
            tracing::debug!(%error, path, "a line of an ignore file is no pattern");
        }
    }
    builder.build().ok().filter(|rules| !rules.is_empty())
}
