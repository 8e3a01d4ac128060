//! The files that belong to a definition and are stored beside it: folders of skills, and memory files.
//!
//! Of a folder of skills only the skills are read: the folders with a `SKILL.md`. Nothing outside the folder of the
//! definition is read, wherever links lead. Names that begin with a dot are ignored.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::definition::bundled_files::{LARGEST, LARGEST_FILE, MOST, agent_path, is_relative};
use crate::definition::mcp::ToolNames;
use crate::definition::skill::{self, Skill};
use crate::definition::{AgentDefinition, BundledFiles, Diagnostic, FieldPath, NamedSource, source_problem};
use crate::domain::state::{Encoding, File};

/// The maximum depth of the folders in a skill.
const MAX_DEPTH: usize = 8;

/// Adds the files in `folder` that a definition names to the definition. The fields of the diagnostics are relative
/// to the definition.
pub(super) fn bundle_files(agent: &mut AgentDefinition, folder: &Path) -> Vec<Diagnostic> {
    let mut enclosing = Bundler {
        root: folder.to_path_buf(),
        files: BundledFiles::default(),
        findings: vec![],
    };
    for NamedSource { field, path, tools } in agent
        .named_sources()
        .into_iter()
        .filter(|named| is_on_disk(&named.path))
    {
        match tools {
            Some(tools) => enclosing.skills(&field, &path, &tools),
            None => enclosing.memory(&field, &path),
        }
    }
    agent.enclosed = Arc::new(enclosing.files);
    enclosing.findings
}

/// Returns the folders and files in `folder` that a definition names, whether they exist or not.
pub(super) fn paths(agent: &AgentDefinition, folder: &Path) -> Vec<PathBuf> {
    let named = agent
        .named_sources()
        .into_iter()
        .filter(|named| is_on_disk(&named.path));
    named.map(|named| folder.join(named.path)).collect()
}

fn is_on_disk(path: &str) -> bool {
    is_relative(path) && source_problem(path).is_none()
}

struct Bundler {
    root: PathBuf,
    files: BundledFiles,
    findings: Vec<Diagnostic>,
}

impl Bundler {
    fn error(&mut self, field: &FieldPath, message: impl Into<String>) {
        self.findings.push(Diagnostic::error(field.clone(), message));
    }

    fn warn(&mut self, field: &FieldPath, message: impl Into<String>) {
        self.findings.push(Diagnostic::warning(field.clone(), message));
    }

    fn skills(&mut self, field: &FieldPath, source: &str, tools: &[String]) {
        let Some(entries) = self.entries(field, source) else {
            return;
        };
        if entries.iter().any(|(name, _)| name == skill::FILE) {
            self.warn(
                field,
                format!("`{source}` is a skill itself; name the folder around it"),
            );
        }
        let mut found = false;
        for (name, is_folder) in entries {
            let folder = format!("{}/{name}", source.trim_end_matches('/'));
            if is_folder && self.root.join(&folder).join(skill::FILE).exists() {
                found = true;
                self.skill(field, &folder, tools);
            }
        }
        if !found {
            self.warn(
                field,
                format!(
                    "there is no skill in `{source}`: a skill is a folder with a {}",
                    skill::FILE
                ),
            );
        }
    }

    fn skill(&mut self, field: &FieldPath, folder: &str, tools: &[String]) {
        let path = format!("{folder}/{}", skill::FILE);
        let Some(file) = self.file(field, &path) else { return };
        if file.encoding == Encoding::Base64 {
            return self.warn(field, format!("`{path}` is ignored: it is not text"));
        }
        match Skill::read(&agent_path(&path), &file.content.text()) {
            Err(reason) => return self.warn(field, format!("`{path}` is ignored: it {reason}")),
            Ok((skill, oddities)) => {
                oddities
                    .into_iter()
                    .for_each(|oddity| self.warn(field, format!("`{path}`: {oddity}")));
                let disclosed = ToolNames::of(tools);
                for tool in skill
                    .include_tools
                    .iter()
                    .filter(|tool| !ToolNames::of([*tool]).overlaps(&disclosed))
                {
                    let message = format!("`{path}` includes the tool `{tool}`, which is not in `skill_tools`");
                    self.warn(field, message);
                }
            }
        }
        self.keep(field, &path, file);
        self.folder(field, folder, MAX_DEPTH);
    }

    /// Adds the files in the folder of a skill, besides its `SKILL.md`.
    fn folder(&mut self, field: &FieldPath, folder: &str, depth: usize) {
        if depth == 0 {
            return self.warn(field, format!("`{folder}` is nested too deeply and is left out"));
        }
        for (name, is_folder) in self.entries(field, folder).unwrap_or_default() {
            let path = format!("{folder}/{name}");
            if is_folder {
                self.folder(field, &path, depth - 1);
            } else if !self.files.contains(&agent_path(&path))
                && let Some(file) = self.file(field, &path)
            {
                self.keep(field, &path, file);
            }
        }
    }

    fn memory(&mut self, field: &FieldPath, path: &str) {
        match self.root.join(path).try_exists() {
            Ok(false) => self.warn(
                field,
                format!("there is no file `{path}`, so the agent starts without this memory"),
            ),
            Ok(true) | Err(_) => match self.file(field, path) {
                Some(File {
                    encoding: Encoding::Base64,
                    ..
                }) => self.error(field, format!("`{path}` must be a text")),
                Some(file) => self.keep(field, path, file),
                None => {}
            },
        }
    }

    fn keep(&mut self, field: &FieldPath, path: &str, file: File) {
        if self.files.contains(&agent_path(path)) {
            return;
        }
        let before = (self.files.len() <= MOST, self.files.bytes() <= LARGEST);
        self.files.add(path, file);
        // Reported once: by the first file beyond the limit.
        if before.0 && self.files.len() > MOST {
            self.error(
                field,
                format!("the definition has more than {MOST} files of skills and memory"),
            );
        } else if before.1 && self.files.bytes() > LARGEST {
            self.error(
                field,
                format!("the files of skills and memory have more than {LARGEST} bytes together"),
            );
        }
    }

    /// Returns the names in a folder in order, and whether each is a folder.
    fn entries(&mut self, field: &FieldPath, folder: &str) -> Option<Vec<(String, bool)>> {
        let real_path = self.inside(field, folder)?;
        let read = real_path.read_dir().and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut entries = match read {
            Ok(entries) => entries,
            Err(error) => {
                self.error(field, format!("the folder `{folder}` cannot be read: {error}"));
                return None;
            }
        };
        entries.retain(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
        let named =
            |entry: &std::fs::DirEntry| (entry.file_name().to_string_lossy().into_owned(), entry.path().is_dir());
        let mut named: Vec<(String, bool)> = entries.iter().map(named).collect();
        named.sort();
        Some(named)
    }

    /// Reads a file; none if it is not a regular file or too large.
    fn file(&mut self, field: &FieldPath, path: &str) -> Option<File> {
        let real_path = self.inside(field, path)?;
        // Reading anything else, such as a pipe, might never end.
        if !real_path.is_file() {
            self.error(field, format!("`{path}` must be a file"));
            return None;
        }
        let mut bytes = vec![];
        let read = std::fs::File::open(&real_path).and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes));
        if let Err(error) = read {
            self.error(field, format!("`{path}` cannot be read: {error}"));
            return None;
        }
        if u64::try_from(bytes.len()).is_ok_and(|length| length > LARGEST_FILE) {
            self.error(field, format!("`{path}` has more than {LARGEST_FILE} bytes"));
            return None;
        }
        Some(match String::from_utf8(bytes) {
            Ok(content) => File {
                content: content.into(),
                ..File::default()
            },
            Err(error) => {
                let content = STANDARD.encode(error.as_bytes());
                File {
                    content: content.into(),
                    encoding: Encoding::Base64,
                    ..File::default()
                }
            }
        })
    }

    /// Returns the real path of a file, if it is within the folder of the definition.
    fn inside(&mut self, field: &FieldPath, path: &str) -> Option<PathBuf> {
        let ends = self
            .root
            .canonicalize()
            .and_then(|root| Ok((root, self.root.join(path).canonicalize()?)));
        match ends {
            Ok((root, end)) if end.starts_with(&root) => Some(end),
            Ok(_) => {
                self.error(
                    field,
                    format!("`{path}` leads out of the folder of the definition and is not followed"),
                );
                None
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.error(field, format!("there is no `{path}` in the folder of the definition"));
                None
            }
            Err(error) => {
                self.error(field, format!("`{path}` cannot be read: {error}"));
                None
            }
        }
    }
}
