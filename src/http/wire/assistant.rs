//! Assistants on the wire.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::thread::{IfExists, SortOrder};
use super::{Object, run};
use crate::db::assistants as rows;
use crate::domain::Invalid;
use crate::domain::assistant::{
    Assistant, AssistantChange, AssistantSettings, AssistantVersion, MAX_NAME_CHARS, UNTITLED,
};
use crate::domain::filter::MetadataFilter;
use crate::domain::graph::{Graph, Schemas};
use crate::domain::id::AssistantId;
use crate::http::error::ApiError;
use crate::http::extract::{Page, Select};

/// A wish for a new assistant.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AssistantCreate {
    /// The agent definition.
    pub graph_id: String,
    /// Its id; minted when absent.
    #[schema(format = Uuid)]
    pub assistant_id: Option<String>,
    /// Settings of every run: `tags`, `recursion_limit`, `configurable`. At most 128 KiB, like `context`.
    #[schema(value_type = Option<Object>)]
    pub config: Option<Object>,
    /// What tools may know about the caller; also known as `config.configurable`, and kept alike with it.
    #[schema(value_type = Option<Object>)]
    pub context: Option<Object>,
    /// The owner's own notes, searchable, 64 KiB at most. Copied to every run.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// What to do if the assistant exists.
    pub if_exists: Option<IfExists>,
    /// What people call it.
    #[schema(default = "Untitled", min_length = 1, max_length = 512)]
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
}

/// A wish for a new assistant that was checked.
#[derive(Debug)]
pub struct CheckedAssistant {
    /// Its id.
    pub id: AssistantId,
    /// What it says.
    pub settings: AssistantSettings,
    /// Whether one of this id is as good.
    pub or_take_it: bool,
}

impl AssistantCreate {
    /// Checks the wish.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(self) -> Result<CheckedAssistant, ApiError> {
        let id = match self.assistant_id {
            Some(id) => id.parse().map_err(|_| ApiError::bad_id("assistant"))?,
            None => AssistantId::mint(),
        };
        let config = self.config.unwrap_or_default();
        run::check_config(&config)?;
        let settings = AssistantSettings {
            graph_id: self.graph_id,
            config,
            context: self.context.unwrap_or_default(),
            metadata: self.metadata.unwrap_or_default(),
            name: self.name.unwrap_or_else(|| UNTITLED.to_owned()),
            description: self.description,
        };
        let or_take_it = self.if_exists.unwrap_or_default() == IfExists::DoNothing;
        Ok(CheckedAssistant {
            id,
            settings,
            or_take_it,
        })
    }
}

/// A change of an assistant, which makes a new version. What is absent or null stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AssistantPatch {
    /// Another agent definition.
    pub graph_id: Option<String>,
    /// Takes the place of the old one.
    #[schema(value_type = Option<Object>)]
    pub config: Option<Object>,
    /// Takes the place of the old one.
    #[schema(value_type = Option<Object>)]
    pub context: Option<Object>,
    /// Keys to set in the metadata; the others stay.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// Another name.
    #[schema(min_length = 1, max_length = 512)]
    pub name: Option<String>,
    /// Another description.
    pub description: Option<String>,
}

impl AssistantPatch {
    /// Checks the change.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(self) -> Result<AssistantChange, ApiError> {
        if let Some(config) = &self.config {
            run::check_config(config)?;
        }
        let Self {
            graph_id,
            config,
            context,
            metadata,
            name,
            description,
        } = self;
        Ok(AssistantChange {
            graph_id,
            config,
            context,
            metadata,
            name,
            description,
        })
    }
}

/// Which assistants are wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AssistantSearch {
    /// Only those of this agent definition.
    pub graph_id: Option<String>,
    /// Only those whose name contains this, in any case.
    #[schema(max_length = 512)]
    pub name: Option<String>,
    /// Only those whose metadata contains this.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// How many at most.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// How many to pass over.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
    /// By what to sort; the newest come first unless told otherwise.
    pub sort_by: Option<AssistantSort>,
    /// In which order.
    pub sort_order: Option<SortOrder>,
    /// Only these columns.
    pub select: Option<Vec<String>>,
}

/// By what assistants are sorted.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AssistantSort {
    /// By id.
    AssistantId,
    /// By age.
    #[default]
    CreatedAt,
    /// By the last change.
    UpdatedAt,
    /// By name, in any case.
    Name,
    /// By agent definition.
    GraphId,
}

/// A search that was checked.
#[derive(Debug)]
pub struct CheckedAssistantSearch {
    /// Which assistants, in which order.
    pub wanted: rows::AssistantQuery,
    /// Which of them.
    pub page: Page,
    /// Which columns.
    pub select: Select,
}

impl AssistantSearch {
    /// Checks the search.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(self) -> Result<CheckedAssistantSearch, ApiError> {
        if self
            .name
            .as_ref()
            .is_some_and(|name| name.chars().count() > MAX_NAME_CHARS)
        {
            return Err(Invalid::new("name", format!("has more than {MAX_NAME_CHARS} characters")).into());
        }
        let page = Page::checked(self.limit, self.offset, 10)?;
        let select = Select::checked(self.select.unwrap_or_default(), &COLUMNS)?;
        let sort = match self.sort_by.unwrap_or_default() {
            AssistantSort::AssistantId => rows::AssistantOrder::Id,
            AssistantSort::CreatedAt => rows::AssistantOrder::CreatedAt,
            AssistantSort::UpdatedAt => rows::AssistantOrder::UpdatedAt,
            AssistantSort::Name => rows::AssistantOrder::Name,
            AssistantSort::GraphId => rows::AssistantOrder::Graph,
        };
        let wanted = rows::AssistantQuery {
            graph_id: self.graph_id,
            name: self.name,
            metadata: MetadataFilter::new("metadata", self.metadata.unwrap_or_default())?,
            sort,
            ascending: matches!(self.sort_order.unwrap_or_default(), SortOrder::Asc),
            limit: page.limit.into(),
            offset: page.offset.into(),
        };
        Ok(CheckedAssistantSearch { wanted, page, select })
    }
}

/// Which versions of an assistant are wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct VersionSearch {
    /// Only those whose metadata contains this.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// How many at most.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// How many to pass over.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
}

/// The version that is to be used from now on.
#[derive(Debug, Deserialize, ToSchema)]
pub struct VersionChoice {
    /// Its number.
    #[schema(minimum = 1)]
    pub version: i64,
}

/// An assistant: an agent definition with settings, which are those of the version in use.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Assistant")]
pub struct AssistantView {
    /// Identifies it. That of an assistant which a definition has by itself is computed from `graph_id`.
    pub assistant_id: Uuid,
    /// The agent definition.
    pub graph_id: String,
    /// Settings of every run.
    #[schema(value_type = Object)]
    pub config: Object,
    /// What tools may know about the caller.
    #[schema(value_type = Object)]
    pub context: Object,
    /// The owner's own notes.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// What people call it.
    pub name: String,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// The number of the version in use.
    pub version: i64,
    /// What it is for.
    pub description: Option<String>,
}

/// The columns that `select` may name.
pub const COLUMNS: [&str; 10] = [
    "assistant_id",
    "graph_id",
    "config",
    "context",
    "metadata",
    "name",
    "created_at",
    "updated_at",
    "version",
    "description",
];

impl From<Assistant> for AssistantView {
    fn from(assistant: Assistant) -> Self {
        let AssistantSettings {
            graph_id,
            config,
            context,
            metadata,
            name,
            description,
        } = assistant.settings;
        Self {
            assistant_id: assistant.id.0,
            graph_id,
            config,
            context,
            metadata,
            name,
            created_at: assistant.created_at.to_string(),
            updated_at: assistant.updated_at.to_string(),
            version: assistant.version,
            description,
        }
    }
}

/// A version of an assistant.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "AssistantVersion")]
pub struct VersionView {
    /// The assistant.
    pub assistant_id: Uuid,
    /// Counts from 1.
    pub version: i64,
    /// The agent definition.
    pub graph_id: String,
    /// Settings of every run.
    #[schema(value_type = Object)]
    pub config: Object,
    /// What tools may know about the caller.
    #[schema(value_type = Object)]
    pub context: Object,
    /// The owner's own notes.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// What people called the assistant.
    pub name: String,
    /// What it was for.
    pub description: Option<String>,
}

impl From<AssistantVersion> for VersionView {
    fn from(version: AssistantVersion) -> Self {
        let AssistantSettings {
            graph_id,
            config,
            context,
            metadata,
            name,
            description,
        } = version.settings;
        Self {
            assistant_id: version.assistant.0,
            version: version.number,
            graph_id,
            config,
            context,
            metadata,
            created_at: version.created_at.to_string(),
            name,
            description,
        }
    }
}

/// The loop of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Graph")]
pub struct GraphView {
    /// What does something.
    pub nodes: Vec<NodeView>,
    /// What may follow on what.
    pub edges: Vec<EdgeView>,
}

/// Something that does something: the model, the tools, a hook of a policy.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeView {
    /// Unique within the graph; inside a subagent its name and a colon come first.
    pub id: String,
    /// Always `runnable`.
    pub r#type: &'static str,
    /// Its name.
    pub data: NodeName,
    /// The tools (`__tools`), the policies (`__middleware`), the subagent that it belongs to (`lc_agent_name`).
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Object,
}

/// The name of a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeName {
    /// As streams show it.
    pub name: String,
}

/// That one node may follow on another.
#[derive(Debug, Serialize, ToSchema)]
pub struct EdgeView {
    /// The first.
    pub source: String,
    /// The second.
    pub target: String,
    /// Whether it depends on what happened; absent when it does not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(value_type = Option<bool>)]
    pub conditional: bool,
}

impl From<Graph> for GraphView {
    fn from(graph: Graph) -> Self {
        let node = |node: crate::domain::graph::Node| NodeView {
            id: node.id,
            r#type: "runnable",
            data: NodeName { name: node.name },
            metadata: node.notes,
        };
        let edge = |edge: crate::domain::graph::Edge| EdgeView {
            source: edge.source,
            target: edge.target,
            conditional: edge.conditional,
        };
        Self {
            nodes: graph.nodes.into_iter().map(node).collect(),
            edges: graph.edges.into_iter().map(edge).collect(),
        }
    }
}

/// What an agent takes, keeps and gives: JSON Schemas.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "GraphSchema")]
pub struct SchemasView {
    /// The agent definition.
    pub graph_id: String,
    /// What may be given as `input`.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    /// What the values of a thread can hold at the end of a run.
    #[schema(value_type = Object)]
    pub output_schema: Value,
    /// What they can hold at any time.
    #[schema(value_type = Object)]
    pub state_schema: Value,
    /// What `config.configurable` may hold.
    #[schema(value_type = Object)]
    pub config_schema: Value,
    /// What `context` may hold; null when the definition does not say.
    #[schema(value_type = Option<Object>)]
    pub context_schema: Option<Value>,
}

impl SchemasView {
    /// Shows the schemas of an agent of the definition `graph_id`.
    pub fn new(graph_id: &str, schemas: Schemas) -> Self {
        Self {
            graph_id: graph_id.to_owned(),
            input_schema: schemas.input,
            output_schema: schemas.output,
            state_schema: schemas.state,
            config_schema: schemas.config,
            context_schema: schemas.context,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::time::Timestamp;

    #[test]
    fn an_assistant_shows_what_the_sdks_read() {
        let assistant = Assistant::automatic("agent", "main-agent", None, Timestamp(0));
        let shown = super::super::json(&AssistantView::from(assistant));
        assert_eq!(shown["assistant_id"], "fe096781-5601-53d2-b2f6-0d3403f7e9ca");
        assert_eq!(shown["metadata"], json!({"created_by": "system"}));
        assert_eq!(
            shown
                .as_object()
                .map(|o| o.keys().map(String::as_str).collect::<Vec<_>>()),
            Some(COLUMNS.to_vec())
        );
    }

    #[test]
    fn a_wish_names_the_field_that_is_wrong() {
        let wrong = |body: Value| {
            let wish: AssistantCreate = serde_json::from_value(body).expect("the shape is right");
            wish.check().map(drop).map_err(|error| error.message().to_owned())
        };
        assert_eq!(wrong(json!({"graph_id": "a", "name": null, "config": null})), Ok(()));
        let id = wrong(json!({"graph_id": "a", "assistant_id": "nope"}));
        assert_eq!(id, Err("Invalid assistant ID: must be a UUID".to_owned()));
        let limit = wrong(json!({"graph_id": "a", "config": {"recursion_limit": 0}}));
        assert!(limit.is_err_and(|text| text.starts_with("config.recursion_limit: ")));
    }

    #[test]
    fn an_edge_says_only_that_it_is_conditional() {
        let edge = |conditional| EdgeView {
            source: "a".into(),
            target: "b".into(),
            conditional,
        };
        assert_eq!(super::super::json(&edge(false)), json!({"source": "a", "target": "b"}));
        assert_eq!(
            super::super::json(&edge(true)),
            json!({"source": "a", "target": "b", "conditional": true})
        );
    }
}
