//! Tools, sources of tools that come and go, and the tools of one agent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::{BoxFuture, join_all};

use super::arguments::ArgumentCheck;
use super::halt::Halt;
use super::outcome::CallOutcome;
use super::scope::Scope;
use crate::definition::mcp::ToolNames;
use crate::definition::{AfterCrash, OnError};
use crate::domain::machine::Failure;
use crate::domain::message::ToolCall;
use crate::domain::state::State;
use crate::model::ToolSpec;

/// A tool.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Returns the specification for the model.
    fn spec(&self) -> &Arc<ToolSpec>;

    /// Returns whether a call has effects outside the state of the thread. Such a call is made only after all steps
    /// that led to it are durable.
    fn has_effects(&self) -> bool {
        false
    }

    /// Returns the handling of a call that was started before a crash. Tools without effects outside the state repeat.
    fn after_crash(&self) -> AfterCrash {
        AfterCrash::Repeat
    }

    /// Returns the effect of an error of this tool on the run.
    fn on_error(&self) -> OnError {
        OnError::Report
    }

    /// Carries out `call`. The arguments have passed the tool's schema.
    ///
    /// # Errors
    /// [`Halt::Fail`] becomes an error result for the model, or ends the run, as [`Tool::on_error`] says.
    async fn call(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt>;
}

/// A source of tools that come and go while the server runs.
pub trait ToolSource: Send + Sync {
    /// Returns the current tools.
    fn tools(&self) -> Vec<Arc<dyn Tool>>;

    /// Returns whether the tool of this name, if it is not known, may be one of these.
    fn may_have(&self, name: &str) -> bool;

    /// Waits until the tools are known, for a limited time, if they have never been.
    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns why the tools are not known, if looking for them has failed.
    fn problem(&self) -> Option<Failure> {
        None
    }

    /// Returns whether runs fail while the tools are not known.
    fn is_required(&self) -> bool {
        true
    }
}

/// The tools of one agent, by name.
#[derive(Clone, Default)]
pub struct Toolbox {
    tools: BTreeMap<String, Arc<dyn Tool>>,
    specs: Vec<Arc<ToolSpec>>,
    /// The tools that are not mentioned to the model.
    hidden: ToolNames,
    /// The sources of tools that come and go. These never replace a tool in `tools`.
    sources: Vec<Arc<dyn ToolSource>>,
    /// The names of tools that are left out, whatever their source.
    excluded: BTreeSet<String>,
    /// The descriptions that replace the tools' own.
    described: BTreeMap<String, String>,
}

impl Toolbox {
    /// Creates a toolbox of `tools` in this order. If two tools have one name, the later one stays.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Self {
        let mut toolbox = Self::default();
        for tool in tools {
            let spec = Arc::clone(tool.spec());
            toolbox.specs.retain(|other| other.name != spec.name);
            toolbox.tools.insert(spec.name.clone(), tool);
            toolbox.specs.push(spec);
        }
        toolbox
    }

    /// Hides these tools from the model until the conversation mentions them.
    #[must_use]
    pub fn with_hidden(self, hidden: ToolNames) -> Self {
        Self { hidden, ..self }
    }

    /// Adds sources of tools that come and go.
    #[must_use]
    pub fn with_sources(self, sources: Vec<Arc<dyn ToolSource>>) -> Self {
        Self { sources, ..self }
    }

    /// Leaves out the tools of these names, whatever their source.
    #[must_use]
    pub fn without(self, names: impl Iterator<Item = String>) -> Self {
        Self {
            excluded: names.collect(),
            ..self
        }
    }

    /// Replaces the descriptions of these tools.
    #[must_use]
    pub fn with_descriptions(self, descriptions: impl Iterator<Item = (String, String)>) -> Self {
        Self {
            described: descriptions.collect(),
            ..self
        }
    }

    /// Returns whether some of its tools come and go.
    pub fn has_sources(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Waits until the tools of all sources are known, for a limited time.
    pub async fn ready(&self) {
        join_all(self.sources.iter().map(|source| source.ready())).await;
    }

    /// Returns why runs fail: the tools of a source that is required are not known, and looking for them has failed.
    pub fn problem(&self) -> Option<Failure> {
        let mut required = self.sources.iter().filter(|source| source.is_required());
        required.find_map(|source| source.problem())
    }

    /// Returns why the tool of this name is not known, if it may be one of a source and looking for its tools has failed.
    pub fn problem_with(&self, name: &str) -> Option<Failure> {
        let mut sources = self.sources.iter().filter(|source| source.may_have(name));
        sources.find_map(|source| source.problem())
    }

    /// Returns the argument checks of its own tools, by name. Those of sources make theirs themselves: what they take may
    /// change.
    pub fn argument_checks(&self) -> HashMap<String, ArgumentCheck> {
        let own = self.specs.iter();
        own.map(|spec| (spec.name.clone(), ArgumentCheck::new(spec))).collect()
    }

    fn source_tools(&self) -> impl Iterator<Item = Arc<dyn Tool>> {
        let there = self.sources.iter().flat_map(|source| source.tools());
        there.filter(|tool| !self.tools.contains_key(&tool.spec().name))
    }

    /// Returns the tool of this name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Tool>> {
        if self.excluded.contains(name) {
            return None;
        }
        let stays = self.tools.get(name).cloned();
        stays.or_else(|| self.source_tools().find(|tool| tool.spec().name == name))
    }

    /// Returns the specifications of all current tools for the model, in their order.
    pub fn specs(&self) -> Vec<Arc<ToolSpec>> {
        let all = self
            .specs
            .iter()
            .cloned()
            .chain(self.source_tools().map(|tool| Arc::clone(tool.spec())));
        let there = all.filter(|spec| !self.excluded.contains(&spec.name));
        let described = |spec: Arc<ToolSpec>| match self.described.get(&spec.name) {
            Some(text) => Arc::new(ToolSpec {
                description: text.clone(),
                ..ToolSpec::clone(&spec)
            }),
            None => spec,
        };
        there.map(described).collect()
    }

    /// Returns the names of the tools that are not hidden.
    pub fn names(&self) -> Vec<String> {
        let names = self.specs().into_iter().map(|spec| spec.name.clone());
        names.filter(|name| !self.hidden.contains(name)).collect()
    }

    /// Returns whether there are no tools and no sources.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty() && self.sources.is_empty()
    }
}

/// Returns the text for a model that called an unknown tool; `names` are the tools that it may call.
pub fn unknown<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    format!("Error: {name} is not a valid tool, try one of [{}].", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::call::ToolOutput;

    struct Named(Arc<ToolSpec>);

    #[async_trait]
    impl Tool for Named {
        fn spec(&self) -> &Arc<ToolSpec> {
            &self.0
        }

        async fn call(&self, _: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
            Ok(CallOutcome::Answer(ToolOutput::error(call, "")))
        }
    }

    struct Passing(&'static str);

    impl ToolSource for Passing {
        fn tools(&self) -> Vec<Arc<dyn Tool>> {
            vec![named(self.0)]
        }

        fn may_have(&self, name: &str) -> bool {
            name == self.0
        }
    }

    fn named(name: &str) -> Arc<dyn Tool> {
        let name = name.to_owned();
        let description = "Its own words.".to_owned();
        Arc::new(Named(Arc::new(ToolSpec {
            name,
            description,
            parameters: serde_json::json!({}),
        })))
    }

    /// Returns a toolbox with two tools of its own, and with two sources of one tool each.
    fn toolbox() -> Toolbox {
        let sources = ["passes", "goes"].map(|name| Arc::new(Passing(name)) as Arc<dyn ToolSource>);
        Toolbox::new([named("stays"), named("leaves")]).with_sources(sources.to_vec())
    }

    #[test]
    fn an_excluded_tool_is_in_no_toolbox_whatever_its_source() {
        let toolbox = toolbox().without(["leaves", "goes"].map(str::to_owned).into_iter());
        assert_eq!(toolbox.names(), ["stays", "passes"]);
        for name in ["leaves", "goes"] {
            assert!(toolbox.get(name).is_none(), "{name}");
        }
        for name in ["stays", "passes"] {
            assert!(toolbox.get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn a_new_description_replaces_that_of_a_tool_whatever_its_source() {
        let descriptions = ["stays", "passes"].map(|name| (name.to_owned(), format!("How {name}.")));
        let toolbox = toolbox().with_descriptions(descriptions.into_iter());
        let specs = toolbox.specs();
        let seen: Vec<String> = specs
            .iter()
            .map(|spec| format!("{}: {}", spec.name, spec.description))
            .collect();
        let expected = [
            "stays: How stays.",
            "leaves: Its own words.",
            "passes: How passes.",
            "goes: Its own words.",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_model_that_called_an_unknown_tool_learns_which_there_are() {
        assert_eq!(
            unknown("dig", ["ls", "task"]),
            "Error: dig is not a valid tool, try one of [ls, task]."
        );
    }
}
