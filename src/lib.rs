//! adjutant serves **deep agents** over HTTP: threads are resources, the `task` tool delegates to subagents inside the
//! server, every step is a checkpoint in SQLite or Postgres, an approval can come days and restarts later, and every
//! event of every agent is streamed under the name of the agent that caused it. This page is the map of the source.
//!
//! # Four sentences to remember
//!
//! 1. **A run is a value.** [`domain::machine::Machine`] holds the state, the phase and the open interrupts of a run.
//! 2. **The loop asks, acts, records, commits.** `Machine::next` and its `…_done` methods are pure; only the [`agent`]
//!    driver calls models and tools, and it commits before it calls the next. A subagent is the same loop, called by
//!    itself one level down.
//! 3. **The log is the truth.** A checkpoint is an entry of the thread's log: what a step *wrote*, never the whole
//!    state. Live streams, joins and replays are one thing: reading the log from a position.
//! 4. **HTTP is a translation.** It turns requests into [`runtime::NewRun`]s and events into frames, and decides
//!    nothing.
//!
//! # The rooms
//!
//! | Room | Content | May use |
//! |---|---|---|
//! | [`domain`] | the nouns and the machine; pure | itself |
//! | [`definition`] | the descriptions of agents: reading, validation, inheritance; pure | `domain` |
//! | [`auth`] | who sends a request: API keys, tokens, the hook, tickets | `domain`, `net` |
//! | [`cedar`] | access policies: reading, validation, rulings; pure | `domain` |
//! | [`net`] | HTTP clients, the reader of event streams, and the SSRF guard | `domain` |
//! | [`model`] | language models and their providers | `domain`, `definition`, `net` |
//! | [`sandbox`] | confines the commands of agents; the processes that do so | nothing |
//! | [`tool`] | tools, MCP servers, programs, commands, sandboxes behind HTTP | `domain`, `definition`, `net`, `model`, `sandbox` |
//! | [`peer`] | clients for remote agents on other servers | `domain`, `definition`, `net`, `model`, `tool` |
//! | [`middleware`] | policies around the loop; one file, one policy | `domain`, `definition`, `model`, `tool` |
//! | [`agent`] | the loop of one agent | `domain`, `definition`, `model`, `tool`, `middleware`, `peer` |
//! | [`sqlite`] | the driver of SQLite; knows nothing of the server | nothing |
//! | [`db`] | SQL, and nothing but SQL; seals what it stores | `domain`, `definition`, `sqlite` |
//! | [`events`] | the log and its subscribers | `domain`, `db`, `metrics`, `shutdown` |
//! | [`runtime`] | admission, execution and resumption of runs; jobs | `domain`, `definition`, `net`, `model`, `tool`, `peer`, `agent`, `db`, `events`, `metrics`, `shutdown` |
//! | [`http`] | the translation | `domain`, `definition`, `auth`, `db` (reads), `events`, `runtime`, `metrics`, `shutdown` |
//! | [`metrics`] | Prometheus metrics | `domain`, `logging` |
//! | [`telemetry`] | the export of traces over OTLP | `domain`, `net`, `metrics` |
//! | [`logging`] | the log of the process | `config` |
//! | [`client`] | the commands that talk to a server: the chat in a terminal; lists of runs, threads and interrupts | `config`, `domain`, `net` |
//! | [`config`] | the configuration | `domain`, `definition`, `cedar` |
//! | [`shutdown`] | the tasks and their end | `domain` |
//! | [`app`] | builds the parts in their order | everything |
//!
//! ```text
//!    main → app → everything
//!
//!    http ──► runtime ──► agent ──► middleware ──► tool ──► model ──► definition ──► domain
//!      │         │          └─────► peer ────────►┘                                    ▲
//!      └────┬────┘                                                                     │
//!           └────► events ──► db ──────────────────────────────────────────────────────┘
//! ```
//!
//! `tests/it/meta/layers.rs` reads the `use` lines and fails on an arrow that is not in this table;
//! `tests/it/meta/circles.rs` fails when the modules of a folder import each other in a circle;
//! `tests/it/meta/language.rs` fails on two public types of one name, and on a longer glossary.
//!
//! # Glossary
//!
//! Words that are in most rooms, at most 30. The documentation of a module explains the words of its own.
//!
//! | Term | Meaning |
//! |---|---|
//! | definition | the description of an agent in a file, in code or in a request; its key is the `graph_id` |
//! | assistant | named, versioned settings of a definition; clients start runs by its id |
//! | thread | a conversation: its state and its history |
//! | run | one execution on a thread |
//! | child run | the run of a subagent: executes a delegated call and has a parent run |
//! | identity | who sends a request: a user of a tenant, with roles |
//! | tenant | an organisation or team whose resources are invisible to all others |
//! | row access | the rows that a task may read and write: those of a tenant, or of all for the server itself |
//! | tree | a run of a main agent with all child runs below it, and their shared budget |
//! | background task | work delegated to an agent on a thread of its own, for which the caller does not wait |
//! | item | a JSON object in the Store; outlives threads |
//! | namespace | for items, the path of labels they are stored under; for agents, the path of tasks from the main agent |
//! | state | the messages, files and fields of a thread at one checkpoint |
//! | update | the writes of one step; the state is the sum of all updates |
//! | checkpoint | an entry of a thread's log: the update of one step, and its parent |
//! | lane | the checkpoints of one agent on a thread: the main agent's, or one child run's |
//! | event | an entry of a thread's log (a checkpoint or a fact), or a piece of an answer that is only streamed |
//! | projection | the translation of events into the frames of one stream protocol or mode |
//! | interrupt | a question to a human for which a run waits |
//! | call | a tool call of the model; its *call status* says whether it is ready, started, waiting, delegated or complete |
//! | machine | the state, phase and open interrupts of one agent; a pure state machine that decides the next step |
//! | step | one turn of the agent's loop: a hook, a model call, or all tool calls of one answer |
//! | hook point | a place in the loop where middleware runs: before or after the agent, before or after the model |
//! | middleware | a policy around the loop, such as approvals or limits; one file each |
//! | program | an agent in code instead of a model with tools ([`Runnable`]); a remote agent is one |
//! | budget | the limits of a run and its tree, with what has been used |
//! | worker | the part of a server process that claims and executes runs |
//! | lease | a worker's claim on a run, which expires unless the worker renews it |
//! | fence | the number of a claim, which grows with each claim; a commit with an older number is refused |
//! | job | durable work with a due time, attempts and a claim: a webhook delivery, a cron, a poll or a cancellation of a remote run, the end of a sandbox, a sweep |
//!
//! # One request: `POST /threads/{id}/runs/stream`
//!
//! 1. [`http`] checks the shape of the request and makes a [`runtime::NewRun`] of it.
//! 2. [`runtime`] admits it in one transaction: locks the thread, applies the multitask strategy, checks and assigns
//!    the answers to open interrupts, inserts the run, and claims it if the thread is free. If the run brings nothing but
//!    input, and the state of the thread is in memory, the input is stored, too. If it brings answers to the main agent
//!    alone, they are stored in its position.
//! 3. The worker loads the machine, gives it the input, unless that is done, and drives it: next → act → record → commit,
//!    again and again. Tools run side by side; a delegated call drives a child's machine through a journal of its own lane.
//! 4. Each commit is one transaction (checkpoints, position, interrupts, events, status), fenced by the lease. When it
//!    is durable, its events become visible in the log; pieces of answers are visible at once and superseded by the
//!    entry.
//! 5. [`events::Tail`] yields the events after a position; a projection in [`http::stream`] makes frames of them.
//!
//! # A server of one's own
//!
//! [`Adjutant::builder`] takes [`Tool`]s, [`Middleware`], [`Model`]s, [`Runnable`]s and definitions written in Rust and
//! serves them beside those of the configuration. What that needs is exported here, at the top; the rooms below are for
//! readers, tests and benches, and change without notice. `examples/embedding.rs` is a whole one.
//!
//! # Other systems' spellings and layouts
//!
//! They are translated where they are read or written, so that the rest of the source knows one form.
//!
//! | Kind | Place |
//! |---|---|
//! | the forms of messages, files and updates that LangChain's clients send | [`domain::input`] |
//! | LangGraph's `configurable` beside the `context` | [`domain::run_config`] |
//! | former keys of definitions, and the dialects of the `task` tool | [`definition::compat`]; their texts are in `middleware/delegation/wording.rs` |
//! | the user, as LangGraph's authentication hands it to agents, and the answer of the hook | `domain/run.rs`, `auth/hook.rs` |
//! | a second word for a value, such as `ask` for `interrupt` | `alias` of serde at the value |
//! | agents in folders of other systems | `config/folder/compat` |
//! | the streams of LangGraph, old and new | `http/stream/v1`, `http/stream/v2` |
//! | the requests and responses of LangGraph | `http/wire`; information and metrics: `http/system.rs` |
//! | other servers that speak LangGraph's wire | `peer/responses.rs` |
//! | rows of the former release, and rows that it has to read | `db/codec/short_form.rs`, `db/questions.rs`, `db/engine/upgrade.rs`, `definition/record.rs` |
//!
//! # How to add …
//!
//! **a middleware with settings**: `middleware/x.rs` with a type that implements [`middleware::Middleware`] (its
//! `configured` reads the settings where a definition lists it); its `mod` line and its entry in `listed()` in
//! `middleware/mod.rs`; the table in `docs/agents.md`; a test. `middleware/context_editing.rs` is one. One that needs a
//! model names the setting in `model_setting` and gets the model in `for_agent`; a setting that names tools of the agent is
//! the one of `tools_setting`; `middleware/rubric.rs` has both.
//!
//! **a built-in tool with settings**: a middleware that offers the tool in its `contribution()` and reads the settings
//! in its `configured`, as above, and a row in `definition/builtins.rs`, which reserves the tool's name and lets
//! approvals and other rules name it; the table in `docs/agents.md`; a test. The `system_prompt` of
//! `middleware/todos.rs` is such a setting.
//!
//! **a setting of tools**: its field in `definition/tool.rs`, its use in `tool/remote.rs` (or the kind of tool that has
//! it), the table in `docs/tools.md`, `docs/settings.md` anew, a test. `max_retries` is one.
//!
//! **a field of agents and subagents**: its entry in the lists at the end of `agents!` in `definition/agent.rs`, and in
//! `POLICY_FIELDS` below them if it is a setting of a middleware; its use in [`agent::assemble`] or in a middleware that is
//! made from the `AgentSpec`; `docs/agents.md` and `docs/subagents.md`; a test. `tool_token_limit_before_evict` is one.
//!
//! **a provider** of a known protocol: its row in `definition/provider.rs`, `docs/models.md`, `docs/settings.md` anew, a
//! test; `openrouter` is one. A new protocol needs its arms in `model/providers/` besides.
//!
//! **a kind of job**: its row in `domain/job.rs`, its lines in `runtime/jobs/mod.rs` (the module, the handler, and `PERIODIC`
//! if it repeats for ever), and its file beside that; `sweep_deliveries.rs` is one.
//!
//! **an endpoint**: the shapes in `http/wire/`, the handler in the file of its resource, its line in the route table of
//! [`http`], its rule in `http/access/rules.rs`, a test in `tests/it/api`, its callers in `tests/it/access/matrix.rs`, and
//! `openapi/` anew. The compaction of a thread, in `http/compaction.rs`, is one.
//!
//! **a table**: a new file in `migrations/sqlite/` and in `migrations/postgres/`, there with a policy for the rows of
//! tenants; one file of functions in `db/`, with its rows in `from_row!`; its lines in `db/erasure.rs`, if it is about users,
//! and in `db/admin/rekey.rs`, if it holds secrets; its name in `db/tests/tables.rs`, and a test on both engines. The
//! servers of the former release go on with the new tables until an upgrade is finished. `db/mcp_logins.rs` is one.

#![cfg_attr(
    test,
    allow(
        clippy::wildcard_enum_match_arm,
        clippy::disallowed_methods,
        reason = "a test names the one variant it is about, and ends with its tasks"
    )
)]

pub mod agent;
pub mod app;
pub mod auth;
pub mod cedar;
pub mod client;
pub mod config;
pub mod db;
pub mod definition;
pub mod domain;
pub mod events;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod middleware;
pub mod model;
pub mod net;
pub mod peer;
pub mod runtime;
pub mod sandbox;
pub mod shutdown;
pub mod sqlite;
pub mod telemetry;
pub mod tool;

pub use async_trait::async_trait;

pub use app::{App as Adjutant, Builder, Prepared};
pub use definition::{
    AfterCrash, AgentDefinition, BlockKind, CacheControl, CacheKind, CacheTtl, ContextLength, ContextTrigger, OnError,
    PromptBlock, SubagentDefinition, SummarizationRule, SummarizationSettings, SystemPrompt,
};
pub use domain::approvers::Approvers;
pub use domain::call::ToolOutput;
pub use domain::identity::{UserId, UserRole};
pub use domain::interrupt::{Question, QuestionKind};
pub use domain::machine::{Failure, HookPoint, Jump};
pub use domain::message::{Content, Message, Role, ToolCall, ToolStatus};
pub use domain::run::DelegatedTask;
pub use domain::schema_text::SchemaText;
pub use domain::state::{File, State, Update};
pub use middleware::{
    AgentParts, Contribution, HookResult, HookTools, Middleware, ModelAnswer, NextCall, NextModel, TextFilter,
};
pub use model::{Model, ModelError, ModelEvent, ModelRequest, ToolSpec};
pub use shutdown::Shutdown;
pub use tool::{CallOutcome, Delegation, Halt, Runnable, Scope, Tool};
