//! The search for skills in their sources.

use std::sync::Arc;

use crate::definition::skill::{FILE, Skill};
use crate::definition::{BundledFiles, SkillSource};
use crate::domain::path::below;
use crate::domain::state::Encoding;
use crate::tool::files::{FileAccess, FileQuery, FileWorkspace};

/// The maximum number of skills of an agent. All of them are listed in its instructions.
const MAX_SKILLS: usize = 200;

/// The reason why a source may have skills that were not found.
const TOO_MANY: &str = "it has too many files to be searched to the end, so skills may be missing";

/// The skills of one source.
struct Found {
    skills: Vec<Skill>,
    /// True if the source was not searched to its end.
    is_cut: bool,
}

/// The sources of skills.
pub(super) struct Catalog {
    pub(super) sources: Vec<Source>,
    /// The place of the folders.
    pub(super) workspace: Arc<dyn FileWorkspace>,
    /// The identity of the sources. If it changes, skills are searched again.
    pub(super) origin: String,
}

/// A folder of skills, as the agent sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) folder: String,
    pub(super) label: String,
}

impl Catalog {
    pub(super) fn new(sources: &[SkillSource], enclosed: &BundledFiles, workspace: Arc<dyn FileWorkspace>) -> Self {
        let source = |source: &SkillSource| Source {
            folder: source.agent_path(),
            label: source.label(),
        };
        let sources: Vec<Source> = sources.iter().map(source).collect();
        let origin = enclosed.fingerprint(sources.iter().map(|source| source.folder.as_str()));
        Self {
            sources,
            workspace,
            origin,
        }
    }

    /// Returns the skills in the order of their sources, and the errors. Of two skills with one name, the later one
    /// wins.
    pub(super) async fn load(&self, access: FileAccess<'_>) -> (Vec<Skill>, Vec<String>) {
        let mut skills: Vec<Skill> = vec![];
        let mut errors = vec![];
        for source in &self.sources {
            match self.of_source(source, access).await {
                Ok(Found { skills: found, is_cut }) => {
                    skills.retain(|skill| !found.iter().any(|other| other.name == skill.name));
                    skills.extend(found);
                    errors.extend(is_cut.then(|| format!("{}: {TOO_MANY}", source.folder)));
                }
                Err(reason) => errors.push(format!("{}: {reason}", source.folder)),
            }
        }
        if skills.len() > MAX_SKILLS {
            errors.push(format!(
                "of {} skills only the first {MAX_SKILLS} are listed",
                skills.len()
            ));
            skills.truncate(MAX_SKILLS);
        }
        (skills, errors)
    }

    async fn of_source(&self, source: &Source, access: FileAccess<'_>) -> Result<Found, String> {
        let mut skills: Vec<Skill> = vec![];
        let query = FileQuery::complete(&source.folder);
        let found = self.workspace.paths(access, &query).await?;
        let is_cut = found.stop.is_some();
        let is_empty = found.paths.is_empty() && !is_cut;
        for path in &found.paths {
            let Some(rest) = below(path, &source.folder) else {
                return Err("it is a file and no folder".to_owned());
            };
            if rest.split_once('/').is_none_or(|(_, file)| file != FILE) {
                continue;
            }
            let Some(file) = self.workspace.read(access, path).await? else {
                continue;
            };
            let read = match file.encoding {
                Encoding::Utf8 => Skill::read(path, &file.content.text()),
                Encoding::Base64 => Err("is no text".to_owned()),
            };
            match read {
                Ok((skill, _)) => {
                    skills.retain(|other| other.name != skill.name);
                    skills.push(skill);
                }
                Err(reason) => tracing::warn!(path, reason, "a skill is ignored"),
            }
        }
        if is_empty {
            Err("there is nothing in it".to_owned())
        } else {
            Ok(Found { skills, is_cut })
        }
    }
}
