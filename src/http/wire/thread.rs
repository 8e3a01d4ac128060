//! Threads on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::Object;
use super::retention::{TtlRequest, TtlView};
use crate::db::threads as rows;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::ThreadId;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::{self, Invalid};
use crate::http::error::ApiError;
use crate::http::extract::{Page, Select};
use crate::runtime::{NewThread, NodeWrite, Superstep};

/// A wish for a new thread.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ThreadCreate {
    /// Its id; minted when absent.
    #[schema(format = Uuid)]
    pub thread_id: Option<String>,
    /// The owner's own notes, searchable.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// What to do if the thread exists.
    pub if_exists: Option<IfExists>,
    /// How long the thread is kept; as the server is configured, when absent.
    pub ttl: Option<TtlRequest>,
    /// History to begin with: steps, as nodes would have taken them.
    pub supersteps: Option<Vec<SuperstepRequest>>,
}

/// What to do if the thread exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IfExists {
    /// Refuse.
    #[default]
    Raise,
    /// Answer with the stored one.
    DoNothing,
}

/// A step of a history that a thread begins with.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct SuperstepRequest {
    /// What its nodes wrote.
    pub updates: Vec<NodeUpdate>,
}

/// What a node wrote.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct NodeUpdate {
    /// An object, a list of objects, or null.
    #[schema(value_type = Option<Object>)]
    pub values: Option<Value>,
    /// Instead of values, a command; only its `update` has a meaning here.
    #[schema(value_type = Option<Object>)]
    pub command: Option<Object>,
    /// The node; `__input__` for the input of a turn. The last one, or at first the input, when absent.
    pub as_node: Option<String>,
}

/// How many steps, and writes in all of them, a thread may begin with.
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
                let reason = "has no meaning in a history: a command can only update";
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
    /// The thread that is wished for.
    ///
    /// # Errors
    /// If the id is none, or a field asks for what cannot be done.
    pub fn into_new_thread(self) -> Result<NewThread, ApiError> {
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
            id: self.thread_id.map_or_else(|| Ok(ThreadId::mint()), |id| read_id(&id))?,
            metadata,
            ttl: self.ttl.map(TtlRequest::check).transpose()?,
            supersteps: supersteps
                .map(|(at, superstep)| superstep.check(at))
                .collect::<Result<_, _>>()?,
        })
    }
}

pub(super) fn read_id(id: &str) -> Result<ThreadId, ApiError> {
    id.parse().map_err(|_| ApiError::bad_id("thread"))
}

/// A change of a thread.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ThreadPatch {
    /// Keys to set in the metadata; the others stay.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// How long the thread is kept from now on.
    pub ttl: Option<TtlRequest>,
}

/// Which threads are wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ThreadSearch {
    /// Only these.
    #[schema(value_type = Option<Vec<Uuid>>)]
    pub ids: Option<Vec<String>>,
    /// Only those whose metadata contains this.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Object>,
    /// Only those whose values contain this. The search may look into 2,000 threads that meet the other conditions.
    #[schema(value_type = Option<Object>)]
    pub values: Option<Object>,
    /// Only those that are doing this.
    pub status: Option<ThreadStatusWord>,
    /// How many at most.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    pub limit: Option<i64>,
    /// How many to pass over.
    #[schema(minimum = 0, default = 0)]
    pub offset: Option<i64>,
    /// By what to sort; those that changed last come first unless told otherwise.
    pub sort_by: Option<ThreadSort>,
    /// In which order.
    pub sort_order: Option<SortOrder>,
    /// Only these columns.
    pub select: Option<Vec<String>>,
    /// Parts of the thread to show under `extracted`, by name: `{"last": "values.messages[-1].content"}`.
    pub extract: Option<BTreeMap<String, String>>,
}

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadStatusWord {
    /// Nothing.
    Idle,
    /// A run works on it or waits for its turn.
    Busy,
    /// It waits for a human, or was stopped before its end.
    Interrupted,
    /// Its last run failed.
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

/// By what threads are sorted.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadSort {
    /// By id.
    ThreadId,
    /// By status.
    Status,
    /// By age.
    CreatedAt,
    /// By the last change.
    #[default]
    UpdatedAt,
    /// By the last change of the state.
    StateUpdatedAt,
}

/// In which order.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SortOrder {
    /// The smallest first.
    Asc,
    /// The greatest first.
    #[default]
    Desc,
}

/// A search that was checked.
#[derive(Debug)]
pub struct CheckedThreadSearch {
    /// Which threads, in which order.
    pub query: rows::ThreadQuery,
    /// Which of them.
    pub page: Page,
    /// Which columns.
    pub select: Select,
    /// What to show under `extracted`.
    pub extract: BTreeMap<String, String>,
}

/// How many parts of a thread a search may extract.
const MAX_EXTRACTS: usize = 10;
/// How many threads a request may name.
const MAX_IDS: usize = 1000;

impl ThreadSearch {
    /// Checks the search.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(self) -> Result<CheckedThreadSearch, ApiError> {
        let extract = self.extract.unwrap_or_default();
        if extract.len() > MAX_EXTRACTS {
            return Err(Invalid::new("extract", format!("has more than {MAX_EXTRACTS} entries")).into());
        }
        if self.ids.as_ref().is_some_and(|ids| ids.len() > MAX_IDS) {
            return Err(Invalid::new("ids", format!("has more than {MAX_IDS} entries")).into());
        }
        let ids = self
            .ids
            .map(|ids| ids.iter().map(|id| read_id(id)).collect::<Result<Vec<_>, _>>())
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
            ..rows::ThreadQuery::default()
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
    /// Identifies it.
    pub thread_id: Uuid,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When anything about it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// When its state last changed.
    #[schema(format = DateTime)]
    pub state_updated_at: String,
    /// The owner's own notes.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// What it is doing.
    pub status: ThreadStatusWord,
    /// The settings of its last run.
    #[schema(value_type = Object)]
    pub config: Object,
    /// The main agent's state; null before the first step.
    #[schema(value_type = Option<Object>)]
    pub values: Option<Object>,
    /// Why its last run failed, when it did: `{error, message}`.
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    /// The open questions, by the id of the task that asks: lists of `{id, value}`.
    #[schema(value_type = Object)]
    pub interrupts: Object,
    /// How long it is kept, if it is not for good; only where it is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<TtlView>,
}

impl ThreadView {
    /// Shows `thread` with its state and its open questions.
    pub fn new(thread: Thread, values: Option<Object>, interrupts: Object) -> Self {
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

/// What stands in `value` under a path like `values.messages[-1].content`; null if nothing does.
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

/// The item at an index that may count from the end.
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
        let thread = Thread::new(ThreadId::mint(), Object::new(), Timestamp(0));
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
    fn an_id_that_is_none_is_refused() {
        let request = ThreadCreate {
            thread_id: Some("nope".into()),
            ..ThreadCreate::default()
        };
        let error = request.into_new_thread().expect_err("nope is no id");
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
                .check()
                .is_err_and(|e| e.message().starts_with("select[0]: is \"bogus\""))
        );
        let limit = ThreadSearch {
            limit: Some(0),
            ..ThreadSearch::default()
        };
        assert!(limit.check().is_err_and(|e| e.message().starts_with("limit: ")));
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
