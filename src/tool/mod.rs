//! Tools, and programs that replace a model.
//!
//! A tool gets a [`Scope`], the state at the beginning of the step, and the call. It returns an outcome. A tool never
//! starts a run, never commits, and sends progress to clients only through [`Scope::progress`]. Everything else that
//! the server is to do or to store is in the outcome.
//!
//! The modules import each other one way, and none imports this one. [`scope`] is above the services that it holds, and
//! below the tools, which use them.
//!
//! Neighbours: [`crate::middleware`] wraps calls, [`crate::agent`] makes them.

pub mod arguments;
pub mod background;
pub mod budget;
pub mod call_tokens;
pub mod demo;
pub mod execute;
pub mod file_claims;
pub mod files;
mod halt;
pub mod items;
pub mod literal;
pub mod mcp;
mod outcome;
pub mod program;
pub mod progress;
pub mod read_access;
pub mod remembered;
pub mod remote;
mod request_span;
mod runnable;
pub mod sandboxes;
pub mod scope;
pub mod slots;
pub mod store;
pub mod thread_sandboxes;
mod toolbox;

pub use arguments::ArgumentCheck;
pub use halt::{Halt, UNCERTAIN};
pub use items::Items;
pub use outcome::{CallOutcome, Delegation};
pub use progress::{ProgressEvent, ProgressSink};
pub use runnable::Runnable;
pub use scope::{ContextEntries, Scope};
pub use slots::CallSlots;
pub use toolbox::{Tool, ToolSource, Toolbox, unknown};
