//! The location of the work of an agent: a model here, a program, or another agent, on this server or on another one.
//!
//! Other agents work in the background, on threads of their own, unless `async = false` lets the caller wait for them.

use super::agent::{AgentDefinition, SubagentDefinition};
use crate::domain::background::BackgroundAgent;

/// The place where a subagent is defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location<'a> {
    /// The definition of its parent.
    Inside,
    /// The agent of this `graph_id` on this server.
    Local(&'a str),
    /// The agent of this `graph_id` on the server at this address.
    Remote {
        /// The agent.
        graph_id: &'a str,
        /// The server.
        url: &'a str,
    },
}

impl SubagentDefinition {
    /// Returns whether the subagent is a model loop of this definition: neither a program nor another agent.
    pub fn is_made_here(&self) -> bool {
        self.runnable.is_none() && self.location() == Location::Inside
    }

    /// Returns the place where the subagent is defined.
    pub fn location(&self) -> Location<'_> {
        match (&self.graph_id, &self.url) {
            (None, _) => Location::Inside,
            (Some(graph_id), None) => Location::Local(graph_id),
            (Some(graph_id), Some(url)) => Location::Remote { graph_id, url },
        }
    }

    /// Returns whether the subagent works in the background.
    pub fn is_background(&self) -> bool {
        self.graph_id.is_some() && self.in_background != Some(false)
    }

    /// Returns the description of the subagent for the agent that starts background tasks; `None` if the subagent does
    /// not work in the background.
    pub fn as_background_agent(&self) -> Option<BackgroundAgent> {
        let graph_id = self.graph_id.clone().filter(|_| self.is_background())?;
        Some(BackgroundAgent {
            name: self.name.clone(),
            description: self.description.clone(),
            graph_id,
            url: self.url.clone(),
            headers: self.headers.clone(),
            webhook: self.webhook.clone(),
            update_strategy: self.update_strategy.unwrap_or_default(),
            notify_parent: self.notify_parent.unwrap_or(true),
            visibility: self.visibility.unwrap_or_default(),
        })
    }

    /// Returns in a few words what does the work of the subagent instead of a model: a program, or another server.
    pub(crate) fn external_worker(&self) -> Option<String> {
        let remote = match self.location() {
            Location::Remote { graph_id, url } => Some((graph_id, url)),
            Location::Local(_) | Location::Inside => None,
        };
        external_worker(self.runnable.as_deref(), remote)
    }
}

impl AgentDefinition {
    /// Returns whether the agent is a program, or an agent of another server.
    pub fn is_program(&self) -> bool {
        self.runnable.is_some() || self.graph_id.is_some() || self.url.is_some()
    }

    /// Returns the `graph_id` and the address of the agent of another server that this agent is.
    pub fn remote(&self) -> Option<(&str, &str)> {
        let url = self.url.as_deref()?;
        Some((self.graph_id.as_deref()?, url))
    }

    /// Returns the agent of another server that this agent is, in the form of a subagent.
    pub fn as_remote_subagent(&self) -> Option<SubagentDefinition> {
        self.remote()?;
        Some(SubagentDefinition {
            name: self.name.clone().unwrap_or_default(),
            graph_id: self.graph_id.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            in_background: Some(false),
            ..SubagentDefinition::default()
        })
    }

    /// Returns in a few words what does the work of the agent: a model, a program, or another server.
    pub fn worker(&self) -> String {
        external_worker(self.runnable.as_deref(), self.remote()).unwrap_or_else(|| format!("model {}", self.model))
    }
}

/// Returns in a few words what does the work of an agent instead of a model: a program, or another server.
fn external_worker(runnable: Option<&str>, remote: Option<(&str, &str)>) -> Option<String> {
    match (runnable, remote) {
        (Some(program), _) => Some(format!("the program {program}")),
        (None, Some((graph_id, url))) => Some(format!("agent {graph_id} at {url}")),
        (None, None) => None,
    }
}
