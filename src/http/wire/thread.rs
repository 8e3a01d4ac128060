//! Threads on the wire.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::interrupt::InterruptSummary;
use super::retention::{TtlRequest, TtlView};
use super::{Object, read_id};
use crate::db::thread_search as rows;
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::filter::MetadataFilter;
use crate::domain::id::ThreadId;
use crate::domain::state::State;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::{self, Invalid};
use crate::http::error::ApiError;
use crate::http::extract::{Page, Select};
use crate::runtime::{NewThread, NodeWrite, Superstep};

/// A request to create a thread.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ThreadCreate {
    /// The id of the thread; generated when absent.
    #[schema(format = Uuid)]
    pub thread_id: Option<String>,
    /// The owner's metadata, searchable.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The behaviour if the thread exists.
    pub if_exists: Option<IfExists>,
    /// The time to live; as configured when absent.
    pub ttl: Option<TtlRequest>,
    /// The initial history: steps as nodes would have taken them.
    pub supersteps: Option<Vec<SuperstepRequest>>,
}

/// The behaviour if the resource exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IfExists {
    /// Refuse the request.
    #[default]
    Raise,
    /// Return the existing resource.
    DoNothing,
}

/// A step of an initial history.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct SuperstepRequest {
    /// The writes of the nodes.
    pub updates: Vec<NodeUpdate>,
}

/// The writes of a node.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct NodeUpdate {
    /// The values: an object, a list of objects, or null.
    #[schema(value_type = Option<Object>)]
    pub values: Option<Value>,
    /// A command instead of values; only its `update` is used.
    #[schema(value_type = Option<Object>)]
    pub command: Option<Object>,
    /// The node; `__input__` for the input of a turn. By default the last node, or the input in the first step.
    pub as_node: Option<String>,
}

/// The maximum number of steps, and of writes in all steps, of an initial history.
const MAX_SUPERSTEPS: usize = 1000;

impl SuperstepRequest {
    fn check(self, at: usize) -> Result<Superstep, Invalid> {
        let check = |(number, update): (usize, NodeUpdate)| {
            let field = |name: &str| format!("supersteps[{at}].updates[{number}].{name}");
            let command = update.command.unwrap_or_default();
            if let Some((name, _)) = command
                .iter()
                .find(|(name, value)| *name != "update" && !value.is_null())
            {
                let reason = "is not allowed in a superstep: only `update` is";
                return Err(Invalid::new(field(&format!("command.{name}")), reason));
            }
            let values = update
                .values
                .filter(|values| !values.is_null())
                .or_else(|| command.get("update").cloned());
            Ok(NodeWrite {
                values: values.unwrap_or_default(),
                node: update.as_node,
            })
        };
        let updates = self
            .updates
            .into_iter()
            .enumerate()
            .map(check)
            .collect::<Result<_, _>>()?;
        Ok(Superstep { updates })
    }
}

impl ThreadCreate {
    /// Validates the request. The thread belongs to `ownership`.
    ///
    /// # Errors
    /// If the id or a field is invalid.
    pub fn into_new_thread(self, ownership: Ownership) -> Result<NewThread, ApiError> {
        let metadata = self.metadata.unwrap_or_default();
        domain::metadata::check(&metadata)?;
        let supersteps = self.supersteps.unwrap_or_default();
        if supersteps.len() > MAX_SUPERSTEPS
            || supersteps.iter().map(|step| step.updates.len()).sum::<usize>() > MAX_SUPERSTEPS
        {
            return Err(Invalid::new("supersteps", format!("has more than {MAX_SUPERSTEPS} updates")).into());
        }
        let supersteps = supersteps.into_iter().enumerate();
        Ok(NewThread {
            id: self
                .thread_id
                .map_or_else(|| Ok(ThreadId::mint()), |id| read_id(&id, "thread"))?,
            ownership,
            metadata,
            ttl: self.ttl.map(TtlRequest::check).transpose()?,
            supersteps: supersteps
                .map(|(at, superstep)| superstep.check(at))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// A change of a thread.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ThreadPatch {
    /// The keys to set in the metadata; others are kept.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// The new time to live.
    pub ttl: Option<TtlRequest>,
}

/// A search for threads.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ThreadSearch {
    /// The ids of the threads.
    #[schema(value_type = Option<Vec<Uuid>>)]
    pub ids: Option<Vec<String>>,
    /// A filter: the metadata contains these keys and values.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// A filter: the values contain these keys and values. The search examines up to 2,000 threads that meet the other
    /// conditions.
    #[schema(value_type = Option<Object>)]
    pub values: Option<Object>,
    /// The status of the threads.
    pub status: Option<ThreadStatusWord>,
    /// The maximum number of items.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// The number of items to skip.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
    /// The field to sort by; last changed first by default.
    pub sort_by: Option<ThreadSort>,
    /// The sort order.
    pub sort_order: Option<SortOrder>,
    /// The columns to return; all when absent.
    pub select: Option<Vec<String>>,
    /// The values to return under `extracted`, by name: `{"last": "values.messages[-1].content"}`.
    pub extract: Option<BTreeMap<String, String>>,
}

/// The status of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadStatusWord {
    /// No run is active or queued.
    Idle,
    /// A run is active or queued.
    Busy,
    /// The thread waits for a human, or its last run was cancelled.
    Interrupted,
    /// The last run failed.
    Error,
}

impl From<ThreadStatusWord> for ThreadStatus {
    fn from(word: ThreadStatusWord) -> Self {
        match word {
            ThreadStatusWord::Idle => Self::Idle,
            ThreadStatusWord::Busy => Self::Busy,
            ThreadStatusWord::Interrupted => Self::Interrupted,
            ThreadStatusWord::Error => Self::Error,
        }
    }
}

impl From<ThreadStatus> for ThreadStatusWord {
    fn from(status: ThreadStatus) -> Self {
        match status {
            ThreadStatus::Idle => Self::Idle,
            ThreadStatus::Busy => Self::Busy,
            ThreadStatus::Interrupted => Self::Interrupted,
            ThreadStatus::Error => Self::Error,
        }
    }
}

/// The sort fields of threads.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadSort {
    /// Sort by id.
    ThreadId,
    /// Sort by status.
    Status,
    /// Sort by the time of creation.
    CreatedAt,
    /// Sort by the time of the last change.
    #[default]
    UpdatedAt,
    /// Sort by the time of the last state change.
    StateUpdatedAt,
}

/// The sort order.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SortOrder {
    /// Smallest first.
    Asc,
    /// Greatest first.
    #[default]
    Desc,
}

/// A validated search.
#[derive(Debug)]
pub struct CheckedThreadSearch {
    /// The conditions and the order.
    pub query: rows::ThreadQuery,
    /// The page.
    pub page: Page,
    /// The selected columns.
    pub select: Select,
    /// The values to return under `extracted`.
    pub extract: BTreeMap<String, String>,
}

/// The maximum number of extracted values.
const MAX_EXTRACTS: usize = 10;
/// The maximum number of ids in a request.
const MAX_IDS: usize = 1000;

impl ThreadSearch {
    /// Validates the search.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self, scope: AccessScope) -> Result<CheckedThreadSearch, ApiError> {
        let extract = self.extract.unwrap_or_default();
        if extract.len() > MAX_EXTRACTS {
            return Err(Invalid::new("extract", format!("has more than {MAX_EXTRACTS} entries")).into());
        }
        if !extract.values().all(|path| begins_with_column(path)) {
            let reason = format!("has a path that begins with none of: {}", COLUMNS.join(", "));
            return Err(Invalid::new("extract", reason).into());
        }
        if self.ids.as_ref().is_some_and(|ids| ids.len() > MAX_IDS) {
            return Err(Invalid::new("ids", format!("has more than {MAX_IDS} entries")).into());
        }
        let ids = self
            .ids
            .map(|ids| {
                ids.iter()
                    .map(|id| read_id(id, "thread"))
                    .collect::<Result<Vec<_>, _>>()
            })
            .transpose()?;
        let sort = match self.sort_by.unwrap_or_default() {
            ThreadSort::ThreadId => rows::ThreadOrder::Id,
            ThreadSort::Status => rows::ThreadOrder::Status,
            ThreadSort::CreatedAt => rows::ThreadOrder::CreatedAt,
            ThreadSort::UpdatedAt => rows::ThreadOrder::UpdatedAt,
            ThreadSort::StateUpdatedAt => rows::ThreadOrder::StateUpdatedAt,
        };
        let page = Page::checked(self.limit, self.offset, 10)?;
        let query = rows::ThreadQuery {
            ids,
            metadata: MetadataFilter::new("metadata", self.metadata.unwrap_or_default())?,
            values: MetadataFilter::new("values", self.values.unwrap_or_default())?,
            status: self.status.map(Into::into),
            sort,
            ascending: matches!(self.sort_order.unwrap_or_default(), SortOrder::Asc),
            limit: page.limit.into(),
            offset: page.offset.into(),
            ..rows::ThreadQuery::within(scope)
        };
        Ok(CheckedThreadSearch {
            query,
            page,
            select: Select::checked(self.select.unwrap_or_default(), &COLUMNS)?,
            extract,
        })
    }
}

/// The columns that `select` may name.
pub const COLUMNS: [&str; 10] = [
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "status",
    "config",
    "values",
    "error",
    "interrupts",
];

/// A thread.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Thread")]
pub struct ThreadView {
    /// The id of the thread.
    pub thread_id: Uuid,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time of the last change.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// The time of the last state change.
    #[schema(format = DateTime)]
    pub state_updated_at: String,
    /// The owner's metadata.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// The status of the thread.
    pub status: ThreadStatusWord,
    /// The settings of the last run.
    #[schema(value_type = Object)]
    pub config: Object,
    /// The state of the main agent; null before the first step.
    #[schema(value_type = Option<Object>)]
    pub values: Option<Arc<State>>,
    /// The error `{error, message}` of the last run, if it failed.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// The open interrupts at the newest checkpoint, by the id of the task that raised them.
    #[schema(value_type = BTreeMap<String, Vec<InterruptSummary>>)]
    pub interrupts: Object,
    /// The time to live; only if it is requested and limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<TtlView>,
}

impl ThreadView {
    /// Creates the view of `thread` with its state and open interrupts.
    pub fn new(thread: Thread, values: Option<Arc<State>>, interrupts: Object) -> Self {
        Self {
            thread_id: thread.id.0,
            created_at: thread.created_at.to_string(),
            updated_at: thread.updated_at.to_string(),
            state_updated_at: thread.state_updated_at.to_string(),
            metadata: thread.metadata,
            status: thread.status.into(),
            config: thread.config,
            values,
            error: thread.error.as_ref().map(super::failure),
            interrupts,
            ttl: None,
        }
    }
}

/// Returns whether a path of [`extract_path`] begins with a column of threads.
fn begins_with_column(path: &str) -> bool {
    COLUMNS.contains(&path.split(['.', '[']).next().unwrap_or_default())
}

/// The value at a path like `values.messages[-1].content`; null if there is none.
pub fn extract_path(value: &Value, path: &str) -> Value {
    let mut found = value;
    for segment in path.split('.') {
        let (name, indexes) = segment.split_once('[').unwrap_or((segment, ""));
        let Some(field) = found.get(name) else {
            return Value::Null;
        };
        found = field;
        for index in indexes.split_terminator(']').map(|index| index.trim_start_matches('[')) {
            let Some(item) = found.as_array().and_then(|items| item_at(items, index)) else {
                return Value::Null;
            };
            found = item;
        }
    }
    found.clone()
}

/// The item at an index, which may count from the end.
fn item_at<'a>(items: &'a [Value], index: &str) -> Option<&'a Value> {
    let index: isize = index.parse().ok()?;
    let from_end = || items.len().checked_sub(index.unsigned_abs());
    items.get(usize::try_from(index).ok().or_else(from_end)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::time::Timestamp;

    #[test]
    fn a_fresh_thread_shows_all_its_keys() {
        let thread = Thread::new(ThreadId::mint(), Ownership::default(), Object::new(), Timestamp(0));
        let view = super::super::json(&ThreadView::new(thread, None, Object::new()));
        assert_eq!(
            view.as_object()
                .map(|o| o.keys().map(String::as_str).collect::<Vec<_>>()),
            Some(COLUMNS.to_vec())
        );
        assert_eq!(view["values"], Value::Null);
        assert_eq!(view["status"], "idle");
        assert_eq!(view["created_at"], "1970-01-01T00:00:00.000000+00:00");
    }

    #[test]
    fn an_invalid_id_is_refused() {
        let request = ThreadCreate {
            thread_id: Some("nope".into()),
            ..ThreadCreate::default()
        };
        let error = request
            .into_new_thread(Ownership::default())
            .expect_err("nope is no id");
        assert_eq!(error.message(), "Invalid thread ID: must be a UUID");
    }

    #[test]
    fn the_words_of_the_wire_are_those_of_the_domain() {
        for status in ThreadStatus::ALL {
            assert_eq!(super::super::json(&ThreadStatusWord::from(status)), status.word());
        }
    }

    #[test]
    fn a_search_checks_its_columns_and_its_page() {
        let select = ThreadSearch {
            select: Some(vec!["bogus".into()]),
            ..ThreadSearch::default()
        };
        assert!(
            select
                .check(AccessScope::Server)
                .is_err_and(|e| e.message().starts_with("select[0]: is \"bogus\""))
        );
        let limit = ThreadSearch {
            limit: Some(0),
            ..ThreadSearch::default()
        };
        assert!(
            limit
                .check(AccessScope::Server)
                .is_err_and(|e| e.message().starts_with("limit: "))
        );
    }

    #[test]
    fn a_path_to_extract_begins_with_a_column() {
        let check = |path: &str| {
            let search = ThreadSearch {
                extract: Some(BTreeMap::from([("it".to_owned(), path.to_owned())])),
                ..ThreadSearch::default()
            };
            search.check(AccessScope::Server).map(|checked| checked.extract)
        };
        for path in [
            "values",
            "values.messages[-1].content",
            "metadata.tag",
            "interrupts",
            "status",
        ] {
            assert!(check(path).is_ok(), "{path}");
        }
        for path in ["", "value.messages", "messages[0]", "valuesmessages", "[0]"] {
            let refused =
                check(path).is_err_and(|error| error.message().starts_with("extract: has a path that begins"));
            assert!(refused, "{path}");
        }
    }

    #[test]
    fn a_path_leads_into_lists_from_both_ends() {
        let thread = json!({"values": {"messages": [{"content": "a"}, {"content": "b"}], "grid": [[1, 2]]}});
        assert_eq!(extract_path(&thread, "values.messages[-1].content"), "b");
        assert_eq!(extract_path(&thread, "values.messages[0].content"), "a");
        assert_eq!(extract_path(&thread, "values.grid[0][1]"), 2);
        assert_eq!(extract_path(&thread, "values.messages[7].content"), Value::Null);
        assert_eq!(extract_path(&thread, "values.messages[-7]"), Value::Null);
        assert_eq!(extract_path(&thread, "values.nothing[x]"), Value::Null);
    }
}
