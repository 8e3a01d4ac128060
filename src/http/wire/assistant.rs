//! Assistants on the wire.

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use uuid::Uuid;

use super::Object;
use crate::runtime::AssistantCard;

/// An assistant: named settings of an agent definition.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Assistant")]
pub struct AssistantView {
    /// Identifies it; computed from `graph_id`, so it is the same after every restart.
    pub assistant_id: Uuid,
    /// The agent definition.
    pub graph_id: String,
    /// Settings of every run.
    #[schema(value_type = Object)]
    pub config: Object,
    /// What tools may know about the caller.
    #[schema(value_type = Object)]
    pub context: Object,
    /// Notes.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// The agent's name.
    pub name: String,
    /// When the server first saw it.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// The number of its version.
    pub version: u32,
    /// What the agent is for.
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

impl From<&AssistantCard> for AssistantView {
    fn from(card: &AssistantCard) -> Self {
        Self {
            assistant_id: card.id.0,
            graph_id: card.graph_id.clone(),
            config: Object::new(),
            context: Object::new(),
            metadata: Object::from_iter([("created_by".to_owned(), json!("system"))]),
            name: card.name.clone(),
            created_at: card.created_at.to_string(),
            updated_at: card.created_at.to_string(),
            version: 1,
            description: card.description.clone(),
        }
    }
}

/// Which assistants are wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct AssistantSearch {
    /// Only those of this agent definition.
    pub graph_id: Option<String>,
    /// Only those whose name contains this, in any case.
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
    pub sort_order: Option<super::thread::SortOrder>,
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
    /// By name.
    Name,
    /// By agent definition.
    GraphId,
}

impl AssistantSearch {
    /// Whether `view` is wanted.
    pub fn wants(&self, view: &AssistantView) -> bool {
        let name = self.name.as_deref().unwrap_or_default().to_lowercase();
        self.graph_id.as_ref().is_none_or(|graph| *graph == view.graph_id)
            && view.name.to_lowercase().contains(&name)
            && self
                .metadata
                .as_ref()
                .is_none_or(|part| super::contains(&view.metadata.clone().into(), &part.clone().into()))
    }

    /// Sorts as wanted.
    pub fn sort(&self, views: &mut [AssistantView]) {
        use super::thread::SortOrder;
        let key = |view: &AssistantView| match self.sort_by.unwrap_or_default() {
            AssistantSort::AssistantId => view.assistant_id.to_string(),
            AssistantSort::CreatedAt => view.created_at.clone(),
            AssistantSort::UpdatedAt => view.updated_at.clone(),
            AssistantSort::Name => view.name.clone(),
            AssistantSort::GraphId => view.graph_id.clone(),
        };
        views.sort_by_cached_key(|view| (key(view), view.graph_id.clone()));
        match self.sort_order.unwrap_or_default() {
            SortOrder::Asc => {}
            SortOrder::Desc => views.reverse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::id::AssistantId;
    use crate::domain::time::Timestamp;

    fn view(graph: &str, name: &str) -> AssistantView {
        AssistantView::from(&AssistantCard {
            id: AssistantId::of_graph(graph),
            graph_id: graph.to_owned(),
            name: name.to_owned(),
            description: None,
            created_at: Timestamp(0),
        })
    }

    #[test]
    fn an_assistant_shows_what_the_sdks_read() {
        let shown = super::super::json(&view("agent", "main-agent"));
        assert_eq!(shown["assistant_id"], "fe096781-5601-53d2-b2f6-0d3403f7e9ca");
        assert_eq!(shown["metadata"], json!({"created_by": "system"}));
        assert_eq!(shown.as_object().map(|o| o.keys().map(String::as_str).collect::<Vec<_>>()), Some(COLUMNS.to_vec()));
    }

    #[test]
    fn a_name_is_found_in_any_case() {
        let search = AssistantSearch { name: Some("MAIN".into()), ..AssistantSearch::default() };
        assert!(search.wants(&view("agent", "main-agent")));
        assert!(!search.wants(&view("agent", "other")));
    }
}
