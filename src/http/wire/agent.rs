//! Definitions of agents on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Object, json};
use crate::definition::{AgentDefinition, DefinitionVersion, Headers, StoredDiagnostic, Validated};
use crate::domain::Invalid;
use crate::domain::assistant::MAX_NAME_CHARS;
use crate::domain::id::AssistantId;
use crate::http::error::ApiError;
use crate::http::extract::{Page, Select};
use crate::runtime::AgentRecord;

/// A definition that is to be judged.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Candidate {
    /// Under which name it would be used.
    #[schema(default = "agent", max_length = 128)]
    pub graph_id: Option<String>,
    /// The definition.
    #[schema(value_type = Object)]
    pub definition: Object,
}

/// Which agents are wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AgentSearch {
    /// Only this one.
    pub graph_id: Option<String>,
    /// Only those whose name or `graph_id` contains this, in any case.
    #[schema(max_length = 512)]
    pub name: Option<String>,
    /// Only those that are defined there.
    pub source: Option<AgentSource>,
    /// Only those that can run, or that cannot.
    pub usable: Option<bool>,
    /// How many at most.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// How many to pass over.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
    /// Only these columns.
    pub select: Option<Vec<String>>,
}

/// Where an agent is defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentSource {
    /// In a file.
    File,
    /// By a client.
    Http,
}

impl AgentSource {
    fn of(version: &DefinitionVersion) -> Self {
        if version.provenance.file().is_some() {
            Self::File
        } else {
            Self::Http
        }
    }
}

/// The conditions of a search.
#[derive(Debug)]
pub struct Wanted {
    graph_id: Option<String>,
    name: Option<String>,
    source: Option<AgentSource>,
    usable: Option<bool>,
}

impl Wanted {
    /// Whether an agent meets them.
    pub fn matches(&self, record: &AgentRecord) -> bool {
        let version = &record.version;
        let name = version.definition.name.as_deref().unwrap_or(&version.graph_id);
        let contains = |part: &String| {
            [name, &version.graph_id]
                .iter()
                .any(|name| name.to_lowercase().contains(part))
        };
        self.graph_id
            .as_ref()
            .is_none_or(|graph_id| *graph_id == version.graph_id)
            && self.name.as_ref().is_none_or(contains)
            && self.source.is_none_or(|source| source == AgentSource::of(version))
            && self.usable.is_none_or(|usable| usable == record.is_usable)
    }
}

/// A search that was checked.
#[derive(Debug)]
pub struct CheckedAgentSearch {
    /// Which agents.
    pub wanted: Wanted,
    /// Which of them.
    pub page: Page,
    /// Which columns.
    pub select: Select,
}

/// The columns that `select` may name.
const COLUMNS: [&str; 10] = [
    "graph_id",
    "assistant_id",
    "source",
    "file",
    "version",
    "digest",
    "usable",
    "definition",
    "problems",
    "updated_at",
];

impl AgentSearch {
    /// Checks the search.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(self) -> Result<CheckedAgentSearch, ApiError> {
        let Self {
            graph_id,
            name,
            source,
            usable,
            limit,
            offset,
            select,
        } = self;
        if name.as_ref().is_some_and(|name| name.chars().count() > MAX_NAME_CHARS) {
            return Err(Invalid::new("name", format!("has more than {MAX_NAME_CHARS} characters")).into());
        }
        let page = Page::checked(limit, offset, 10)?;
        let select = Select::checked(select.unwrap_or_default(), &COLUMNS)?;
        let name = name.map(|name| name.to_lowercase());
        Ok(CheckedAgentSearch {
            wanted: Wanted {
                graph_id,
                name,
                source,
                usable,
            },
            page,
            select,
        })
    }
}

/// An agent, as it is defined now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Agent")]
pub struct AgentView {
    /// Its name among the agents.
    pub graph_id: String,
    /// The assistant that it has by itself.
    pub assistant_id: Uuid,
    /// Where it is defined.
    pub source: AgentSource,
    /// The file or folder that defines it.
    pub file: Option<String>,
    /// The number of the version in use; counts from 1.
    pub version: i64,
    /// Names the content: SHA-256 in hexadecimal digits.
    pub digest: String,
    /// Whether it can run.
    pub usable: bool,
    /// What it says, with every default.
    #[schema(value_type = Object)]
    pub definition: Object,
    /// What is wrong or odd; for a file also why its last change is not in use.
    pub problems: Vec<RemarkView>,
    /// Since when this version holds.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl From<AgentRecord> for AgentView {
    fn from(record: AgentRecord) -> Self {
        let AgentRecord {
            version,
            remarks,
            is_usable,
        } = record;
        Self {
            assistant_id: AssistantId::of_graph(&version.graph_id).0,
            source: AgentSource::of(&version),
            file: version.provenance.file().map(str::to_owned),
            version: version.number,
            digest: version.digest.0,
            usable: is_usable,
            definition: object(&version.definition),
            problems: remarks.into_iter().map(RemarkView::from).collect(),
            updated_at: version.created_at.to_string(),
            graph_id: version.graph_id,
        }
    }
}

/// The definition without what may be secret in it.
fn object(definition: &AgentDefinition) -> Object {
    let mut shown = definition.clone();
    for value in shown
        .subagents
        .iter_mut()
        .flat_map(|subagent| subagent.headers.0.values_mut())
    {
        Headers::MASK.clone_into(value);
    }
    json(&shown).as_object().cloned().unwrap_or_default()
}

/// An agent, or one of its versions, when that was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AgentOrVersion {
    /// As it is defined now.
    Agent(Box<AgentView>),
    /// As it was defined then.
    Version(AgentVersionView),
}

/// A version of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "AgentVersion")]
pub struct AgentVersionView {
    /// The agent.
    pub graph_id: String,
    /// Counts from 1.
    pub version: i64,
    /// Where it was defined.
    pub source: AgentSource,
    /// The file or folder that defined it.
    pub file: Option<String>,
    /// Names the content: SHA-256 in hexadecimal digits.
    pub digest: String,
    /// What it says, with every default.
    #[schema(value_type = Object)]
    pub definition: Object,
    /// When it began to hold.
    #[schema(format = DateTime)]
    pub created_at: String,
}

impl From<DefinitionVersion> for AgentVersionView {
    fn from(version: DefinitionVersion) -> Self {
        Self {
            version: version.number,
            source: AgentSource::of(&version),
            file: version.provenance.file().map(str::to_owned),
            definition: object(&version.definition),
            created_at: version.created_at.to_string(),
            digest: version.digest.0,
            graph_id: version.graph_id,
        }
    }
}

/// Something that is wrong with a definition, or odd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(title = "Problem")]
pub struct RemarkView {
    /// `error`: it cannot be used like this; `warning`: it is probably not what was meant.
    #[schema(example = "error")]
    pub severity: String,
    /// The field, as in `subagents[0].name`; empty for the whole.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub message: String,
    /// The file in which it is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in the file, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The column in the line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

impl From<StoredDiagnostic> for RemarkView {
    fn from(remark: StoredDiagnostic) -> Self {
        let StoredDiagnostic {
            file,
            position,
            field,
            message,
            severity,
        } = remark;
        let (line, column) = position.unzip();
        Self {
            severity: severity.to_string(),
            field,
            message,
            file,
            line,
            column,
        }
    }
}

/// Whether a definition could be used.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Verdict")]
pub struct VerdictView {
    /// Whether it could.
    pub valid: bool,
    /// Every reason why not, and what is odd.
    pub findings: Vec<RemarkView>,
}

impl From<Validated> for VerdictView {
    fn from(judgement: Validated) -> Self {
        let findings = judgement
            .findings
            .into_iter()
            .map(|finding| StoredDiagnostic::from(finding).into())
            .collect();
        Self {
            valid: judgement.definition.is_some(),
            findings,
        }
    }
}
