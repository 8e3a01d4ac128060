//! The search for skills in their sources.

use std::sync::Arc;

use crate::definition::skill::{FILE, Skill};
use crate::definition::{BundledFiles, SkillSource};
use crate::domain::path::below;
use crate::domain::state::{Encoding, State};

/// The maximum number of skills of an agent. All of them are listed in its instructions.
const MAX_SKILLS: usize = 200;

/// The sources of skills.
pub(super) struct Catalog {
    pub(super) sources: Vec<Source>,
    /// The files of the definition.
    pub(super) enclosed: Arc<BundledFiles>,
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
    pub(super) fn new(sources: &[SkillSource], enclosed: Arc<BundledFiles>) -> Self {
        let source = |source: &SkillSource| Source {
            folder: source.agent_path(),
            label: source.label(),
        };
        let sources: Vec<Source> = sources.iter().map(source).collect();
        let origin = enclosed.fingerprint(sources.iter().map(|source| source.folder.as_str()));
        Self {
            sources,
            enclosed,
            origin,
        }
    }

    /// Returns the skills in the order of their sources, and the errors. Of two skills with one name, the later one
    /// wins.
    pub(super) fn load(&self, state: &State) -> (Vec<Skill>, Vec<String>) {
        let mut skills: Vec<Skill> = vec![];
        let mut errors = vec![];
        for source in &self.sources {
            match self.of_source(source, state) {
                Ok(found) => {
                    skills.retain(|skill| !found.iter().any(|other| other.name == skill.name));
                    skills.extend(found);
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

    fn of_source(&self, source: &Source, state: &State) -> Result<Vec<Skill>, &'static str> {
        let mut is_empty = true;
        let mut skills: Vec<Skill> = vec![];
        for path in self.enclosed.paths(state, &source.folder) {
            is_empty = false;
            let Some(rest) = below(path, &source.folder) else {
                return Err("it is a file and no folder");
            };
            let is_skill = rest.split_once('/').is_some_and(|(_, file)| file == FILE);
            let Some(file) = self.enclosed.file(state, path).filter(|_| is_skill) else {
                continue;
            };
            let read = match file.encoding {
                Encoding::Utf8 => Skill::read(path, &file.content),
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
            Err("there is nothing in it")
        } else {
            Ok(skills)
        }
    }
}
