//! Assistants on the wire.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::thread::{IfExists, SortOrder};
use super::{Object, read_id, run};
use crate::db::assistants as rows;
use crate::domain::Invalid;
use crate::domain::access::AccessScope;
use crate::domain::assistant::{
    Assistant, AssistantChange, AssistantSettings, AssistantVersion, MAX_NAME_CHARS, UNTITLED,
};
use crate::domain::filter::MetadataFilter;
use crate::domain::graph::{Graph, Schemas};
use crate::domain::id::AssistantId;
use crate::http::error::ApiError;
use crate::http::extract::{Page, Select};

/// A request to create an assistant.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AssistantCreate {
    /// The `graph_id` of the agent definition.
    pub graph_id: String,
    /// The id of the assistant; generated when absent.
    #[schema(format = Uuid)]
    pub assistant_id: Option<String>,
    /// Settings of every run: `tags`, `recursion_limit`, `configurable`. At most 128 KiB, like `context`.
    #[schema(value_type = Option<Object>)]
    pub config: Option<Object>,
    /// The context that tools can read. The server keeps it equal to `config.configurable`; if both are given, they must
    /// not differ.
    #[schema(value_type = Option<Object>)]
    pub context: Option<Object>,
    /// The owner's metadata, searchable, at most 64 KiB. It is copied to every run.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The behaviour if the assistant exists.
    pub if_exists: Option<IfExists>,
    /// The display name.
    #[schema(default = "Untitled", min_length = 1, max_length = 512)]
    pub name: Option<String>,
    /// The description.
    pub description: Option<String>,
}

/// A validated request to create an assistant.
#[derive(Debug)]
pub struct CheckedAssistant {
    /// The id.
    pub id: AssistantId,
    /// The settings.
    pub settings: AssistantSettings,
    /// True if an existing assistant with this id is returned.
    pub reuse_existing: bool,
}

impl AssistantCreate {
    /// Validates the request.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self) -> Result<CheckedAssistant, ApiError> {
        let id = match self.assistant_id {
            Some(id) => read_id(&id, "assistant")?,
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
        let reuse_existing = self.if_exists.unwrap_or_default() == IfExists::DoNothing;
        Ok(CheckedAssistant {
            id,
            settings,
            reuse_existing,
        })
    }
}

/// A change of an assistant, which creates a new version. Absent and null fields keep their values.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AssistantPatch {
    /// The `graph_id` of another agent definition.
    pub graph_id: Option<String>,
    /// The new value; it replaces the old one.
    #[schema(value_type = Option<Object>)]
    pub config: Option<Object>,
    /// The new value; it replaces the old one.
    #[schema(value_type = Option<Object>)]
    pub context: Option<Object>,
    /// The keys to set in the metadata; others are kept.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The new display name.
    #[schema(min_length = 1, max_length = 512)]
    pub name: Option<String>,
    /// The new description.
    pub description: Option<String>,
}

impl AssistantPatch {
    /// Validates the change.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self) -> Result<AssistantChange, ApiError> {
        if let Some(config) = &self.config {
            run::check_config(config)?;
        }
        Ok(AssistantChange {
            graph_id: self.graph_id,
            config: self.config,
            context: self.context,
            metadata: self.metadata,
            name: self.name,
            description: self.description,
        })
    }
}

/// A search for assistants.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AssistantSearch {
    /// The agent definition.
    pub graph_id: Option<String>,
    /// A part of the name, in any case.
    #[schema(max_length = 512)]
    pub name: Option<String>,
    /// A filter: the metadata contains these keys and values.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The maximum number of items.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// The number of items to skip.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
    /// The field to sort by; newest first by default.
    pub sort_by: Option<AssistantSort>,
    /// The sort order.
    pub sort_order: Option<SortOrder>,
    /// The columns to return; all when absent.
    pub select: Option<Vec<String>>,
}

/// The sort fields of assistants.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AssistantSort {
    /// Sort by id.
    AssistantId,
    /// Sort by the time of creation.
    #[default]
    CreatedAt,
    /// Sort by the time of the last change.
    UpdatedAt,
    /// Sort by name, ignoring case.
    Name,
    /// Sort by agent definition.
    GraphId,
}

/// A validated search.
#[derive(Debug)]
pub struct CheckedAssistantSearch {
    /// The conditions and the order.
    pub query: rows::AssistantQuery,
    /// The page.
    pub page: Page,
    /// The selected columns.
    pub select: Select,
}

impl AssistantSearch {
    /// Validates the search.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self, scope: AccessScope) -> Result<CheckedAssistantSearch, ApiError> {
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
        let query = rows::AssistantQuery {
            scope,
            graph_id: self.graph_id,
            name: self.name,
            metadata: MetadataFilter::new("metadata", self.metadata.unwrap_or_default())?,
            sort,
            ascending: matches!(self.sort_order.unwrap_or_default(), SortOrder::Asc),
            limit: page.limit.into(),
            offset: page.offset.into(),
        };
        Ok(CheckedAssistantSearch { query, page, select })
    }
}

/// A search for versions of an assistant.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct VersionSearch {
    /// A filter: the metadata contains these keys and values.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The maximum number of items.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// The number of items to skip.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
}

/// The version of an assistant to use.
#[derive(Debug, Deserialize, ToSchema)]
pub struct VersionChoice {
    /// The number of the version.
    #[schema(minimum = 1)]
    pub version: i64,
}

/// An assistant: an agent definition with the settings of the current version.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Assistant")]
pub struct AssistantView {
    /// The id of the assistant. The id of a default assistant is derived from `graph_id`.
    pub assistant_id: Uuid,
    /// The agent definition.
    pub graph_id: String,
    /// The settings of every run.
    #[schema(value_type = Object)]
    pub config: Object,
    /// The context of the run, which tools can read.
    #[schema(value_type = Object)]
    pub context: Object,
    /// The owner's metadata.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// The display name.
    pub name: String,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time of the last change.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// The number of the current version.
    pub version: i64,
    /// The description.
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
        let settings = assistant.settings;
        Self {
            assistant_id: assistant.id.0,
            graph_id: settings.graph_id,
            config: settings.config,
            context: settings.context,
            metadata: settings.metadata,
            name: settings.name,
            created_at: assistant.created_at.to_string(),
            updated_at: assistant.updated_at.to_string(),
            version: assistant.version,
            description: settings.description,
        }
    }
}

/// A version of an assistant.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "AssistantVersion")]
pub struct VersionView {
    /// The assistant.
    pub assistant_id: Uuid,
    /// The number of the version, from 1.
    pub version: i64,
    /// The agent definition.
    pub graph_id: String,
    /// The settings of every run.
    #[schema(value_type = Object)]
    pub config: Object,
    /// The context of the run, which tools can read.
    #[schema(value_type = Object)]
    pub context: Object,
    /// The owner's metadata.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The display name.
    pub name: String,
    /// The description.
    pub description: Option<String>,
}

impl From<AssistantVersion> for VersionView {
    fn from(version: AssistantVersion) -> Self {
        let settings = version.settings;
        Self {
            assistant_id: version.assistant.0,
            version: version.number,
            graph_id: settings.graph_id,
            config: settings.config,
            context: settings.context,
            metadata: settings.metadata,
            created_at: version.created_at.to_string(),
            name: settings.name,
            description: settings.description,
        }
    }
}

/// The graph of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Graph")]
pub struct GraphView {
    /// The steps of the loop.
    pub nodes: Vec<NodeView>,
    /// The transitions between nodes.
    pub edges: Vec<EdgeView>,
}

/// A node of the graph: the model, the tools, or a middleware hook.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeView {
    /// The id within the graph; nodes of a subagent are prefixed with its name and a colon.
    pub id: String,
    /// Always `runnable`.
    pub r#type: &'static str,
    /// The name of the node.
    pub data: NodeName,
    /// The tools (`__tools`), the middleware (`__middleware`), and the subagent (`lc_agent_name`).
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Object,
}

/// The name of a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeName {
    /// The name as streams show it.
    pub name: String,
}

/// A transition from one node to another.
#[derive(Debug, Serialize, ToSchema)]
pub struct EdgeView {
    /// The node at which the transition begins.
    pub source: String,
    /// The node at which the transition ends.
    pub target: String,
    /// True if the transition is conditional; absent when it is not.
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

/// The JSON Schemas of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "GraphSchema")]
pub struct SchemasView {
    /// The agent definition.
    pub graph_id: String,
    /// The schema of `input`.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    /// The schema of a thread's values at the end of a run.
    #[schema(value_type = Object)]
    pub output_schema: Value,
    /// The schema of a thread's values at any time.
    #[schema(value_type = Object)]
    pub state_schema: Value,
    /// The schema of `config.configurable`.
    #[schema(value_type = Object)]
    pub config_schema: Value,
    /// The schema of `context`; null when the definition has none.
    #[schema(value_type = Option<Object>)]
    pub context_schema: Option<Value>,
}

impl SchemasView {
    /// The schemas of an agent of the definition `graph_id`.
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
    fn an_invalid_request_names_the_field() {
        let wrong = |body: Value| {
            let request: AssistantCreate = serde_json::from_value(body).expect("the shape is right");
            request.check().map(drop).map_err(|error| error.message().to_owned())
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
