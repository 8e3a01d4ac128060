//! The service that does the work of background tasks.

use futures::future::BoxFuture;

use super::Scope;
use crate::domain::background::{BackgroundAgent, BackgroundTask, TaskRun, TaskSnapshot};
use crate::domain::message::ToolCall;

/// A service that starts and manages background tasks.
pub trait Tasks: Send + Sync {
    /// Starts a task. A repetition of the same call returns the task that the call started before.
    ///
    /// # Errors
    /// The reason for the model.
    fn start<'a>(&'a self, scope: &'a Scope, order: BackgroundOrder<'a>) -> BoxFuture<'a, Result<TaskRun, String>>;

    /// Sends a task a further message. A repetition of the same call returns the run that the call started before.
    ///
    /// # Errors
    /// The reason for the model.
    fn update<'a>(
        &'a self,
        scope: &'a Scope,
        task: &'a BackgroundTask,
        order: BackgroundOrder<'a>,
    ) -> BoxFuture<'a, Result<TaskRun, String>>;

    /// Returns the status of a task.
    ///
    /// # Errors
    /// The reason for the model.
    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        task: &'a BackgroundTask,
    ) -> BoxFuture<'a, Result<TaskSnapshot, String>>;

    /// Stops a task and returns its status. A task that was already over keeps its status.
    ///
    /// # Errors
    /// The reason for the model.
    fn cancel<'a>(&'a self, scope: &'a Scope, task: &'a BackgroundTask) -> BoxFuture<'a, Result<TaskSnapshot, String>>;
}

/// The order of a task.
#[derive(Debug, Clone, Copy)]
pub struct BackgroundOrder<'a> {
    /// The agent that does the work.
    pub agent: &'a BackgroundAgent,
    /// The work, or the further message.
    pub text: &'a str,
    /// The call that starts the task or sends the message.
    pub call: &'a ToolCall,
}

/// The background tasks of a server without any.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTasks;

const NONE: &str = "There is nobody here who could work in the background.";

impl Tasks for NoTasks {
    fn start<'a>(&'a self, _: &'a Scope, _: BackgroundOrder<'a>) -> BoxFuture<'a, Result<TaskRun, String>> {
        Box::pin(async move { Err(NONE.to_owned()) })
    }

    fn update<'a>(
        &'a self,
        _: &'a Scope,
        _: &'a BackgroundTask,
        _: BackgroundOrder<'a>,
    ) -> BoxFuture<'a, Result<TaskRun, String>> {
        Box::pin(async move { Err(NONE.to_owned()) })
    }

    fn snapshot<'a>(&'a self, _: &'a Scope, _: &'a BackgroundTask) -> BoxFuture<'a, Result<TaskSnapshot, String>> {
        Box::pin(async move { Err(NONE.to_owned()) })
    }

    fn cancel<'a>(&'a self, _: &'a Scope, _: &'a BackgroundTask) -> BoxFuture<'a, Result<TaskSnapshot, String>> {
        Box::pin(async move { Err(NONE.to_owned()) })
    }
}
