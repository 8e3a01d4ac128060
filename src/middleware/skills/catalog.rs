//! Looking for skills in their sources.

use std::sync::Arc;

use crate::definition::skill::{FILE, Skill};
use crate::definition::{BundledFiles, SkillSource};
use crate::domain::path::below;
use crate::domain::state::{Encoding, State};

/// How many skills an agent may know. All of them stand in its instructions.
const MOST: usize = 200;

/// Where skills are looked for.
pub(super) struct Catalog {
    pub(super) sources: Vec<Source>,
    /// The files of the definition.
    pub(super) enclosed: Arc<BundledFiles>,
    /// Is another one when skills are to be looked for anew: other sources, or other skills in the definition.
    pub(super) origin: String,
}

/// A folder of skills, as an agent sees it.
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

    /// The skills in the order of their sources, and what went wrong. Of two with one name the later stays.
    pub(super) fn load(&self, state: &State) -> (Vec<Skill>, Vec<String>) {
        let (mut skills, mut errors): (Vec<Skill>, Vec<String>) = (vec![], vec![]);
        for source in &self.sources {
            match self.of_source(source, state) {
                Ok(found) => {
                    skills.retain(|skill| !found.iter().any(|other| other.name == skill.name));
                    skills.extend(found);
                }
                Err(reason) => errors.push(format!("{}: {reason}", source.folder)),
            }
        }
        if skills.len() > MOST {
            errors.push(format!("of {} skills only the first {MOST} are listed", skills.len()));
            skills.truncate(MOST);
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
                Err(reason) => tracing::warn!(path, reason, "a skill is passed over"),
            }
        }
        if is_empty {
            Err("there is nothing in it")
        } else {
            Ok(skills)
        }
    }
}
