//! Agent definitions on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Object, json};
use crate::definition::{AgentDefinition, DefinitionVersion, Headers, StoredDiagnostic, Validated};
use crate::domain::Invalid;
use crate::domain::assistant::MAX_NAME_CHARS;
use crate::domain::delivery::shown_address;
use crate::domain::id::AssistantId;
use crate::http::diagnostic::DiagnosticView;
use crate::http::error::ApiError;
use crate::http::extract::{Page, Select};
use crate::runtime::AgentRecord;

/// A definition to validate.
#[derive(Debug, Deserialize, ToSchema)]
pub struct AgentValidate {
    /// The name of the agent.
    #[schema(default = "agent", max_length = 128)]
    pub graph_id: Option<String>,
    /// The definition.
    #[schema(value_type = Object)]
    pub definition: Object,
}

/// A search for agents.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AgentSearch {
    /// The `graph_id` of an agent.
    pub graph_id: Option<String>,
    /// A part of the name or `graph_id`, in any case.
    #[schema(max_length = 512)]
    pub name: Option<String>,
    /// The place where the agents are defined.
    pub source: Option<AgentSource>,
    /// True if the agents can run.
    pub usable: Option<bool>,
    /// The maximum number of items.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// The number of items to skip.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
    /// The columns to return; all when absent.
    pub select: Option<Vec<String>>,
}

/// The place where an agent is defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentSource {
    /// In a file.
    File,
    /// Over HTTP.
    Http,
}

impl AgentSource {
    fn of(version: &DefinitionVersion) -> Self {
        if version.definition_source.file().is_some() {
            Self::File
        } else {
            Self::Http
        }
    }
}

/// The conditions of a search.
#[derive(Debug)]
pub struct AgentFilter {
    graph_id: Option<String>,
    name: Option<String>,
    source: Option<AgentSource>,
    usable: Option<bool>,
}

impl AgentFilter {
    /// Returns true if an agent meets the conditions.
    pub fn matches(&self, record: &AgentRecord) -> bool {
        let version = &record.version;
        let name = version.definition.name_or(&version.graph_id);
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

/// A validated search.
#[derive(Debug)]
pub struct CheckedAgentSearch {
    /// The conditions.
    pub filter: AgentFilter,
    /// The page.
    pub page: Page,
    /// The selected columns.
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
    /// Validates the search.
    ///
    /// # Errors
    /// Names the invalid field.
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
            filter: AgentFilter {
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

/// An agent with its current definition.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Agent")]
pub struct AgentView {
    /// The name of the agent.
    pub graph_id: String,
    /// The default assistant.
    pub assistant_id: Uuid,
    /// The place where it is defined.
    pub source: AgentSource,
    /// The file or folder that defines it.
    pub file: Option<String>,
    /// The number of the current version, from 1.
    pub version: i64,
    /// The SHA-256 hash of the definition in hexadecimal digits.
    pub digest: String,
    /// True if the agent can run.
    pub usable: bool,
    /// The definition with all defaults.
    #[schema(value_type = Object)]
    pub definition: Object,
    /// The diagnostics; for a file also the reason why its last change is not used.
    pub problems: Vec<DiagnosticView>,
    /// The time since which this version is used.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl From<AgentRecord> for AgentView {
    fn from(record: AgentRecord) -> Self {
        let AgentRecord {
            version,
            remarks,
            is_usable,
            owner: _,
        } = record;
        Self {
            assistant_id: AssistantId::of_graph(&version.graph_id).0,
            source: AgentSource::of(&version),
            file: version.definition_source.file().map(str::to_owned),
            version: version.number,
            digest: version.digest.0,
            usable: is_usable,
            definition: object(&version.definition),
            problems: remarks.into_iter().map(DiagnosticView::from).collect(),
            updated_at: version.created_at.to_string(),
            graph_id: version.graph_id,
        }
    }
}

/// The definition with secret values masked.
fn object(definition: &AgentDefinition) -> Object {
    let mut shown = definition.clone();
    for value in shown
        .subagents
        .iter_mut()
        .flat_map(|subagent| subagent.headers.0.values_mut())
        .chain(shown.headers.0.values_mut())
    {
        Headers::MASK.clone_into(value);
    }
    for subagent in &mut shown.subagents {
        subagent.webhook = subagent.webhook.as_deref().map(shown_address);
    }
    json(&shown).as_object().cloned().unwrap_or_default()
}

/// An agent, or the requested version of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AgentOrVersion {
    /// The current definition.
    Agent(Box<AgentView>),
    /// A stored version.
    Version(AgentVersionView),
}

/// A version of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "AgentVersion")]
pub struct AgentVersionView {
    /// The agent.
    pub graph_id: String,
    /// The number of the version, from 1.
    pub version: i64,
    /// The place where it was defined.
    pub source: AgentSource,
    /// The file or folder that defined it.
    pub file: Option<String>,
    /// The SHA-256 hash of the definition in hexadecimal digits.
    pub digest: String,
    /// The definition with all defaults.
    #[schema(value_type = Object)]
    pub definition: Object,
    /// The time since which this version was used.
    #[schema(format = DateTime)]
    pub created_at: String,
}

impl From<DefinitionVersion> for AgentVersionView {
    fn from(version: DefinitionVersion) -> Self {
        Self {
            version: version.number,
            source: AgentSource::of(&version),
            file: version.definition_source.file().map(str::to_owned),
            definition: object(&version.definition),
            created_at: version.created_at.to_string(),
            digest: version.digest.0,
            graph_id: version.graph_id,
        }
    }
}

/// The result of a validation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Validation")]
pub struct ValidationView {
    /// True if the definition can be used.
    pub valid: bool,
    /// The errors and warnings.
    pub findings: Vec<DiagnosticView>,
}

impl From<Validated> for ValidationView {
    fn from(validated: Validated) -> Self {
        let findings = validated
            .findings
            .into_iter()
            .map(|finding| StoredDiagnostic::from(finding).into())
            .collect();
        Self {
            valid: validated.definition.is_some(),
            findings,
        }
    }
}
