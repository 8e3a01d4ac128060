//! Crons on the wire.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::run::{RunCreate, RunScope};
use super::thread::SortOrder;
use super::{Object, word};
use crate::db::crons as rows;
use crate::domain::Invalid;
use crate::domain::cron::{Cron, Schedule};
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{AssistantId, ThreadId};
use crate::domain::time::Timestamp;
use crate::http::error::ApiError;
use crate::http::extract::{Page, Select, fields};
use crate::http::unknown_keys;
use crate::runtime::NewCron;

/// A wish for a cron: what each run shall do, as in a wish for a run, and when.
#[derive(Debug)]
pub struct CronCreate {
    /// What each run shall do. `command.resume`, `after_seconds` and what concerns a waiting client make no sense here.
    run: RunCreate,
    /// When.
    timing: CronTiming,
}

impl PartialSchema for CronCreate {
    /// The fields of both, side by side.
    fn schema() -> RefOr<Schema> {
        let (RefOr::T(Schema::Object(mut both)), RefOr::T(Schema::Object(timing))) =
            (RunCreate::schema(), CronTiming::schema())
        else {
            return RunCreate::schema();
        };
        both.description =
            Some("A wish for a cron: what each run shall do, as in a wish for a run, and when.".to_owned());
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

/// When runs are started.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct CronTiming {
    /// Five fields: minute, hour, day of the month, month, day of the week.
    #[schema(required = true, value_type = String, example = "0 9 * * 1-5")]
    schedule: Option<String>,
    /// The IANA name of the time zone in which the schedule is meant; UTC when absent.
    #[schema(example = "America/New_York")]
    timezone: Option<String>,
    /// After this instant no run is started any more.
    #[schema(format = DateTime)]
    end_time: Option<String>,
    /// Whether runs are started at all.
    #[schema(default = true)]
    enabled: Option<bool>,
    /// Without a thread: delete or keep the one that each run is given.
    #[schema(example = "delete")]
    on_run_completed: Option<String>,
}

/// The fields that a change of a cron may name.
const PATCHABLE: [&str; 19] = [
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
    "stream_mode",
    "stream_subgraphs",
    "stream_resumable",
    "durability",
    "checkpoint_during",
];

/// Refuses keys that no wish for a cron has. What was stored before it was looked is not asked.
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

/// Reads a wish for a cron.
///
/// # Errors
/// Names the field that is wrong.
pub fn read_new_cron(payload: Object, thread: Option<ThreadId>) -> Result<NewCron, ApiError> {
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
    let new_run = run.check(thread.map_or(RunScope::Stateless, RunScope::Thread))?.new_run;
    if new_run.resume.is_some() {
        return Err(Invalid::new(
            "command.resume",
            "makes no sense for a cron: nobody knows what will be asked",
        )
        .into());
    }
    if !new_run.after.is_zero() {
        return Err(Invalid::new("after_seconds", "makes no sense for a cron: its schedule says when").into());
    }
    Ok(NewCron {
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

/// Reads a change of a cron: fields that are given take the place of the old ones, metadata is added to the old.
///
/// # Errors
/// Names the field that is wrong.
pub fn read_patch(old: &Cron, patch: &Object) -> Result<NewCron, ApiError> {
    let mut payload = old.payload.clone();
    remove_cron_id(&mut payload);
    for name in PATCHABLE {
        let Some(value) = patch.get(name) else { continue };
        match (name, value, payload.get_mut(name)) {
            ("metadata", Value::Object(more), Some(Value::Object(known))) => known.extend(more.clone()),
            _ => _ = payload.insert(name.to_owned(), value.clone()),
        }
    }
    read_new_cron(payload, old.thread)
}

/// Takes the cron's own mark out of the settings, which the client did not write.
fn remove_cron_id(payload: &mut Object) {
    if let Some(Value::Object(config)) = payload.get_mut("config")
        && let Some(Value::Object(configurable)) = config.get_mut("configurable")
    {
        configurable.remove("cron_id");
    }
}

/// Which crons are wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct CronSearch {
    /// Only those of this assistant: its UUID or its graph id.
    pub assistant_id: Option<String>,
    /// Only those of this thread.
    #[schema(format = Uuid)]
    pub thread_id: Option<String>,
    /// Only those that are enabled, or not.
    pub enabled: Option<bool>,
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
    pub sort_by: Option<CronSort>,
    /// In which order.
    pub sort_order: Option<SortOrder>,
    /// Only these columns.
    pub select: Option<Vec<String>>,
}

/// By what crons are sorted.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CronSort {
    /// By id.
    CronId,
    /// By assistant.
    AssistantId,
    /// By thread.
    ThreadId,
    /// By age.
    #[default]
    CreatedAt,
    /// By the last change.
    UpdatedAt,
    /// By when they are due next.
    NextRunDate,
    /// By when they end.
    EndTime,
}

impl CronSearch {
    /// Checks the search: which crons, which page of them, and which columns.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(self) -> Result<(rows::CronQuery, Page, Select), ApiError> {
        let assistant = self
            .assistant_id
            .map(|id| id.parse().unwrap_or_else(|_| AssistantId::of_graph(&id)));
        let thread = self
            .thread_id
            .map(|id| id.parse().map_err(|_| ApiError::bad_id("thread")))
            .transpose()?;
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
            assistant,
            thread,
            enabled: self.enabled,
            metadata: MetadataFilter::new("metadata", self.metadata.unwrap_or_default())?,
            sort,
            ascending: matches!(self.sort_order.unwrap_or_default(), SortOrder::Asc),
            limit: page.limit.into(),
            offset: page.offset.into(),
        };
        Ok((query, page, Select::checked(self.select.unwrap_or_default(), &COLUMNS)?))
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
    /// Identifies it.
    pub cron_id: Uuid,
    /// Who runs.
    pub assistant_id: Uuid,
    /// Where; null if every run is given a thread of its own.
    pub thread_id: Option<Uuid>,
    /// Always empty.
    pub user_id: String,
    /// After this instant no run is started any more.
    #[schema(format = DateTime)]
    pub end_time: Option<String>,
    /// When: five fields.
    pub schedule: String,
    /// The IANA name of the time zone in which the schedule is meant; null for UTC.
    pub timezone: Option<String>,
    /// The wish, with the id of the cron in `config.configurable`.
    #[schema(value_type = Object)]
    pub payload: Object,
    /// When the next run is due; null when there will not be one.
    #[schema(format = DateTime)]
    pub next_run_date: Option<String>,
    /// The requester's notes; each run has them too, with `cron_id`.
    #[schema(value_type = Object)]
    pub metadata: Object,
    /// What becomes of the threads that runs are given: delete or keep; null for a cron on a thread.
    pub on_run_completed: Option<String>,
    /// Whether runs are started at all.
    pub enabled: bool,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When a client last changed it.
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
    /// The wanted columns; `now` is the server's time and shown only to those who name it.
    pub fn pick(self, select: &Select, now: Timestamp) -> Value {
        let mut item = super::json(&self);
        if select.names("now") {
            item["now"] = json!(now.to_string());
        }
        select.pick(item)
    }
}
