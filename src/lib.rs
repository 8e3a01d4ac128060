//! adjutant serves **deep agents** over HTTP: threads are resources, the `task` tool delegates to subagents inside the
//! server, every step is a checkpoint in SQLite or Postgres, an approval can come days and restarts later, and every event
//! of every agent is streamed under the name of the agent that caused it. This page is the map of the source.
//!
//! # Four sentences to hold in the head
//!
//! 1. **A run is a value.** [`domain::machine::Machine`] says where a run stands: state, phase, open questions.
//! 2. **The loop asks, does, writes down, commits.** `Machine::next` and its `…_done` methods are pure; only the
//!    [`agent`] driver touches the world, and it commits before it touches it again. A subagent is the same loop called by
//!    itself, one level down.
//! 3. **What happened is in the log.** A checkpoint is an entry of the thread's log: what a step *wrote*, never the whole
//!    state. Live streams, joins and replays are one thing: reading the log from a position.
//! 4. **HTTP is a translation.** It turns requests into wishes and events into frames, and decides nothing.
//!
//! # The rooms
//!
//! | Room | What it is for | May use |
//! |---|---|---|
//! | [`domain`] | the nouns; pure | itself |
//! | [`model`] | language models and their providers | `domain` |
//! | [`net`] | HTTP clients and event streams of other servers | nothing |
//! | [`peer`] | other servers, and agents that work there | `domain`, `model`, `net`, `tool` |
//! | [`tool`] | things a model can call | `domain`, `model` |
//! | [`middleware`] | policies around the loop; one file, one policy | `domain`, `model`, `tool` |
//! | [`agent`] | how one run proceeds | those above |
//! | [`db`] | SQL, and nothing but SQL | `domain` |
//! | [`events`] | the log and who is listening | `domain`, `db` |
//! | [`runtime`] | from a wish to a running loop | `domain`, `agent`, `tool`, `db`, `events`, `metrics`, `peer` |
//! | [`http`] | the translation | `domain`, `db` (reads), `events`, `runtime`, `metrics` |
//! | [`metrics`] | what is counted for those who watch | `domain`, `logging` |
//! | [`logging`] | the log of the process | `config` |
//! | [`config`], [`shutdown`] | what is configured; who owns the tasks | `domain`; nothing |
//! | [`app`] | builds the parts, owns their order | everything |
//!
//! ```text
//!    main → app → everything
//!
//!    http ──► runtime ──► agent ──► middleware ──► tool ──► model ──► domain
//!      │         │                                                      ▲
//!      └────┬────┘                                                      │
//!           └────► events ──► db ───────────────────────────────────────┘
//!
//!    runtime, agent ──► peer ──► tool
//! ```
//!
//! `tests/it/layers.rs` reads the `use` lines and fails on an arrow that is not drawn here.
//!
//! # One request's walk: `POST /threads/{id}/runs/stream`
//!
//! 1. [`http`] checks the shape of the request and makes a [`runtime::Wish`] of it.
//! 2. [`runtime`] admits it in one transaction: locks the thread, applies the multitask strategy, checks and assigns the
//!    answers to open questions, inserts the run, and claims it if the thread is free.
//! 3. The worker loads the machine, gives it the input, and drives it: next → do → write down → commit, again and again.
//!    Tools run side by side; a delegated call drives a child's machine through a journal of its own lane.
//! 4. Each commit is one transaction (checkpoints, position, questions, events, status), fenced by the lease. When it is
//!    durable, its events become visible in the log; pieces of answers are visible at once and superseded by the entry.
//! 5. [`events::Tail`] yields the events after a position; the presenter in [`http::stream`] makes frames of them.
//!
//! # A server of one's own
//!
//! [`Adjutant::builder`] takes [`Tool`]s, [`Middleware`], [`Model`]s, [`Runnable`]s and definitions written in Rust and
//! serves them beside what the configuration says. What that needs is exported here, at the top; the rooms below are for
//! readers, tests and benches, and change without notice. `examples/embedding.rs` is a whole one.
//!
//! # How to add …
//!
//! **a tool**: implement [`tool::Tool`] in `tool/`; declare it in [`app`] (or offer it from a policy); test it through a
//! script in `tests/it`.
//!
//! **a policy**: one file in `middleware/` with a type that implements [`middleware::Middleware`]; put it into *the* list in
//! [`agent::assemble`]; add its setting to [`definition`].
//!
//! **an endpoint**: the shapes in `http/wire/`, the handler in the file of its resource, its line in the route table of
//! [`http`], a scene in `tests/it`, and `openapi/` anew.
//!
//! **a table**: the same numbered file in both folders of `migrations/`, one file of functions in `db/`, a test on both
//! engines.

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
pub mod shutdown;
pub mod tool;

pub use async_trait::async_trait;

pub use app::{App as Adjutant, Builder, Prepared};
pub use definition::{
    AfterCrash, AgentDefinition, BlockKind, CacheControl, CacheKind, CacheTtl, OnError, PromptBlock,
    SubagentDefinition, SystemPrompt,
};
pub use domain::call::ToolOutput;
pub use domain::interrupt::{Question, QuestionKind};
pub use domain::machine::{Failure, HookPoint, Jump};
pub use domain::message::{Content, Message, Role, ToolCall, ToolStatus};
pub use domain::run::DelegatedTask;
pub use domain::state::{File, State, Update};
pub use middleware::{Contribution, HookResult, Middleware, ModelAnswer, NextCall, NextModel};
pub use model::{Model, ModelError, ModelEvent, ModelRequest, ToolSpec};
pub use shutdown::Shutdown;
pub use tool::{CallOutcome, Delegation, Halt, Runnable, Scope, Tool};
