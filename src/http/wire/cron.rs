//! Crons on the wire.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::run::{RunCreate, RunScope};
use super::thread::SortOrder;
use super::{Object, read_id, word};
use crate::db::crons as rows;
use crate::domain::Invalid;
use crate::domain::access::AccessScope;
use crate::domain::cron::{Cron, Schedule};
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{AssistantId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::run_config::configurable_mut;
use crate::domain::time::Timestamp;
use crate::http::error::ApiError;
use crate::http::extract::{Page, Select, fields};
use crate::http::unknown_keys;
use crate::runtime::{AssistantRef, NewCron};

/// A request to create or change a cron: the run, with the fields of a run request, and its schedule.
#[derive(Debug)]
pub struct CronCreate {
    /// The run. `command.resume`, `after_seconds` and fields about a waiting client are not allowed.
    run: RunCreate,
    /// The schedule.
    timing: CronTiming,
}

impl PartialSchema for CronCreate {
    /// The fields of both parts in one object.
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(mut both)) = RunCreate::schema() else {
            return RunCreate::schema();
        };
        let RefOr::T(Schema::Object(timing)) = CronTiming::schema() else {
            return RunCreate::schema();
        };
        both.description = Some(
            "A request to create or change a cron: the run, with the fields of a run request, and its schedule."
                .to_owned(),
        );
        both.properties.extend(timing.properties);
        both.required.extend(timing.required);
        Schema::Object(both).into()
    }
}

impl ToSchema for CronCreate {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        RunCreate::schemas(schemas);
        CronTiming::schemas(schemas);
    }
}

/// The schedule of a cron.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct CronTiming {
    /// The schedule in five fields: minute, hour, day of the month, month, day of the week. Or one of `@hourly`,
    /// `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly`, `@annually`.
    #[schema(required = true, value_type = String, example = "0 9 * * 1-5")]
    schedule: Option<String>,
    /// The IANA name of the schedule's time zone; UTC when absent.
    #[schema(example = "America/New_York")]
    timezone: Option<String>,
    /// The time after which no more runs are started.
    #[schema(format = DateTime)]
    end_time: Option<String>,
    /// True if runs are started.
    #[schema(default = true)]
    enabled: Option<bool>,
    /// For crons without a thread: delete or keep the threads of the runs.
    #[schema(example = "delete")]
    on_run_completed: Option<String>,
}

/// The fields that a patch may have.
const PATCHABLE: [&str; 20] = [
    "schedule",
    "timezone",
    "end_time",
    "enabled",
    "on_run_completed",
    "input",
    "command",
    "metadata",
    "config",
    "context",
    "webhook",
    "interrupt_before",
    "interrupt_after",
    "multitask_strategy",
    "priority",
    "stream_mode",
    "stream_subgraphs",
    "stream_resumable",
    "durability",
    "checkpoint_during",
];

/// Refuses unknown keys. Stored payloads are not checked, since they may be older than the check.
///
/// # Errors
/// Names the key.
pub fn check_keys(payload: &Object) -> Result<(), ApiError> {
    let both = [
        unknown_keys::fields_of::<RunCreate>(),
        unknown_keys::fields_of::<CronTiming>(),
    ];
    let known: Vec<&str> = both.into_iter().flatten().flatten().copied().collect();
    unknown_keys::check(payload.keys(), Some(&known))
}

/// Reads a request of `caller` to create a cron.
///
/// # Errors
/// Names the invalid field.
pub fn read_new_cron(payload: Object, thread: Option<ThreadId>, caller: &Arc<Identity>) -> Result<NewCron, ApiError> {
    let CronCreate { run, timing } = CronCreate {
        run: fields(&payload)?,
        timing: fields(&payload)?,
    };
    let text = timing
        .schedule
        .as_deref()
        .ok_or_else(|| Invalid::new("schedule", "is missing"))?;
    let schedule = Schedule::read(text, timing.timezone.as_deref())?;
    let end = timing
        .end_time
        .as_deref()
        .map(|text| Timestamp::read(text).ok_or_else(|| Invalid::new("end_time", "must be an ISO 8601 date and time")));
    let keep = word(
        "on_run_completed",
        timing.on_run_completed.as_deref(),
        &[("delete", false), ("keep", true)],
    )?;
    let place = thread.map_or(RunScope::Stateless, RunScope::Thread);
    let new_run = run.check(place, caller)?.new_run;
    if new_run.resume.is_some() {
        return Err(Invalid::new("command.resume", "is not allowed for a cron").into());
    }
    if !new_run.after.is_zero() {
        return Err(Invalid::new(
            "after_seconds",
            "is not allowed for a cron: its schedule determines the start",
        )
        .into());
    }
    Ok(NewCron {
        caller: new_run.caller,
        thread,
        assistant: new_run.assistant,
        schedule,
        end: end.transpose()?,
        enabled: timing.enabled.unwrap_or(true),
        keep_threads: keep.unwrap_or(false),
        request: new_run.request,
        metadata: new_run.metadata,
        payload,
    })
}

/// Applies a patch: given fields replace the old ones, and metadata is merged.
///
/// # Errors
/// Names the invalid field.
pub fn read_patch(old: &Cron, patch: &Object, caller: &Arc<Identity>) -> Result<NewCron, ApiError> {
    let mut payload = old.payload.clone();
    remove_cron_id(&mut payload);
    for name in PATCHABLE {
        let Some(value) = patch.get(name) else { continue };
        match (name, value, payload.get_mut(name)) {
            ("metadata", Value::Object(more), Some(Value::Object(known))) => known.extend(more.clone()),
            _ => _ = payload.insert(name.to_owned(), value.clone()),
        }
    }
    // A request that an earlier build has stored may be refused by now, and can be stopped all the same.
    if patch.len() == 1 && patch.get("enabled") == Some(&Value::Bool(false)) {
        return Ok(stopped(old, payload, caller));
    }
    read_new_cron(payload, old.thread, caller)
}

/// Returns the cron `old` with another payload, so that it starts no runs. Its request stays as it was read before.
fn stopped(old: &Cron, payload: Object, caller: &Arc<Identity>) -> NewCron {
    NewCron {
        caller: Arc::clone(caller),
        thread: old.thread,
        assistant: AssistantRef::Id(old.assistant),
        schedule: old.schedule.clone(),
        end: old.end,
        enabled: false,
        keep_threads: old.keep_threads,
        request: old.request.clone(),
        metadata: old.metadata.clone(),
        payload,
    }
}

/// Removes the cron's id from the settings; it was added by the server.
fn remove_cron_id(payload: &mut Object) {
    if let Some(Value::Object(config)) = payload.get_mut("config")
        && let Some(configurable) = configurable_mut(config)
    {
        configurable.remove("cron_id");
    }
}

/// A search for crons.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct CronSearch {
    /// The assistant: its UUID or its graph id.
    pub assistant_id: Option<String>,
    /// The thread.
    #[schema(format = Uuid)]
    pub thread_id: Option<String>,
    /// True if the crons are enabled.
    pub enabled: Option<bool>,
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
    pub sort_by: Option<CronSort>,
    /// The sort order.
    pub sort_order: Option<SortOrder>,
    /// The columns to return; all when absent.
    pub select: Option<Vec<String>>,
}

/// The sort fields of crons.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CronSort {
    /// Sort by id.
    CronId,
    /// Sort by assistant.
    AssistantId,
    /// Sort by thread.
    ThreadId,
    /// Sort by the time of creation.
    #[default]
    CreatedAt,
    /// Sort by the time of the last change.
    UpdatedAt,
    /// Sort by the time of the next run.
    NextRunDate,
    /// Sort by the end time.
    EndTime,
}

/// A validated search.
#[derive(Debug)]
pub struct CheckedCronSearch {
    /// The conditions and the order.
    pub query: rows::CronQuery,
    /// The page.
    pub page: Page,
    /// The selected columns.
    pub select: Select,
}

impl CronSearch {
    /// Validates the search.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(self, scope: AccessScope) -> Result<CheckedCronSearch, ApiError> {
        let assistant = self
            .assistant_id
            .map(|id| id.parse().unwrap_or_else(|_| AssistantId::of_graph(&id)));
        let thread = self.thread_id.map(|id| read_id(&id, "thread")).transpose()?;
        let sort = match self.sort_by.unwrap_or_default() {
            CronSort::CronId => rows::CronOrder::Id,
            CronSort::AssistantId => rows::CronOrder::Assistant,
            CronSort::ThreadId => rows::CronOrder::Thread,
            CronSort::CreatedAt => rows::CronOrder::CreatedAt,
            CronSort::UpdatedAt => rows::CronOrder::UpdatedAt,
            CronSort::NextRunDate => rows::CronOrder::Due,
            CronSort::EndTime => rows::CronOrder::End,
        };
        let page = Page::checked(self.limit, self.offset, 10)?;
        let query = rows::CronQuery {
            scope,
            assistant,
            thread,
            enabled: self.enabled,
            metadata: MetadataFilter::new("metadata", self.metadata.unwrap_or_default())?,
            sort,
            ascending: matches!(self.sort_order.unwrap_or_default(), SortOrder::Asc),
            limit: page.limit.into(),
            offset: page.offset.into(),
        };
        let select = Select::checked(self.select.unwrap_or_default(), &COLUMNS)?;
        Ok(CheckedCronSearch { query, page, select })
    }
}

/// The columns that `select` may name.
const COLUMNS: [&str; 15] = [
    "cron_id",
    "assistant_id",
    "thread_id",
    "user_id",
    "end_time",
    "schedule",
    "timezone",
    "payload",
    "next_run_date",
    "metadata",
    "on_run_completed",
    "enabled",
    "created_at",
    "updated_at",
    "now",
];

/// A cron.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Cron")]
pub struct CronView {
    /// The id of the cron.
    pub cron_id: Uuid,
    /// The assistant.
    pub assistant_id: Uuid,
    /// The thread; null if every run gets a new one.
    pub thread_id: Option<Uuid>,
    /// Unused; always empty.
    pub user_id: String,
    /// The time after which no more runs are started.
    #[schema(format = DateTime)]
    pub end_time: Option<String>,
    /// The schedule as it was given.
    pub schedule: String,
    /// The IANA name of the schedule's time zone; null for UTC.
    pub timezone: Option<String>,
    /// The request, with the id of the cron in `config.configurable`.
    #[schema(value_type = Object)]
    pub payload: Object,
    /// The time of the next run; null if there is none.
    #[schema(format = DateTime)]
    pub next_run_date: Option<String>,
    /// The metadata of the cron. Each run has it, too, with `cron_id`.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// The action on the threads of runs: delete or keep; null for a cron on a thread.
    pub on_run_completed: Option<String>,
    /// True if runs are started.
    pub enabled: bool,
    /// The time of creation.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time of the last change by a client.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

impl From<Cron> for CronView {
    fn from(cron: Cron) -> Self {
        let completed = if cron.keep_threads { "keep" } else { "delete" };
        Self {
            cron_id: cron.id.0,
            assistant_id: cron.assistant.0,
            thread_id: cron.thread.map(|thread| thread.0),
            user_id: String::new(),
            end_time: cron.end.map(|end| end.to_string()),
            schedule: cron.schedule.text().to_owned(),
            timezone: cron.schedule.zone().map(str::to_owned),
            payload: cron.payload,
            next_run_date: cron.due_at.map(|due| due.to_string()),
            metadata: cron.metadata,
            on_run_completed: cron.thread.is_none().then(|| completed.to_owned()),
            enabled: cron.enabled,
            created_at: cron.created_at.to_string(),
            updated_at: cron.updated_at.to_string(),
        }
    }
}

impl CronView {
    /// Returns the selected columns. The column `now`, the server's time, is returned only if it is named.
    pub fn pick(self, select: &Select, now: Timestamp) -> Value {
        let mut item = super::json(&self);
        if select.names("now") {
            item["now"] = json!(now.to_string());
        }
        select.pick(item)
    }
}
