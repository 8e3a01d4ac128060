//! Checks definitions that have the right shape.
//!
//! All mistakes are reported at once, each with its field. The checks look nothing up: the caller provides the declared
//! tools and the providers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::answer;
use super::builtins::{Builtin, Listing, SUBAGENTS, is_policy_tool, is_standard_field};
use super::description::{MAX_DESCRIPTION, unknown_slots};
use super::diagnostic::{Diagnostic, FieldPath, suggestion};
use super::mcp::{McpReference, check_servers};
use super::model_settings::check_settings;
use super::words::{SHORTEST_TIMEOUT_S, is_word};
use super::{
    AgentDefinition, ApprovalChoices, ApprovalRule, ClientRules, ExpiryDecision, MAX_EXPIRY_S, MAX_MODEL_NAMES,
    ModelNames, Policy, SubagentDefinition, SummarizationRule, UnknownSubagent,
};
use crate::domain::approvers::Approvers;
use crate::domain::condition::ArgumentCondition;
use crate::domain::field::FieldDefinition;
use crate::domain::interrupt::Decision;
use crate::domain::limits::Limits;
use crate::domain::schema::Schema;
use crate::domain::state::is_private;

mod names;
mod policies;
mod skills;
mod tool;
mod toolset;

use skills::SkillsAndMemory;
pub use tool::{MOST_RETRIES, check_tool, tool_name_problem};

/// The deepest nesting of delegations that a definition may allow.
pub const DEEPEST: u32 = 32;

/// The minimum length of a subagent's description. A shorter one says too little for a model to choose by.
const SHORT_DESCRIPTION: usize = 20;

/// The names that a definition may refer to.
#[derive(Debug, Clone, Default)]
pub struct ValidationContext {
    /// The declared tools.
    pub tools: BTreeSet<String>,
    /// The names that may stand before the colon of a model name.
    pub providers: BTreeSet<String>,
    /// The MCP servers.
    pub mcp_servers: BTreeSet<String>,
    /// The sandbox services.
    pub sandboxes: BTreeSet<String>,
    /// The programs that agents can be.
    pub runnables: BTreeSet<String>,
    /// The registered policies.
    pub middleware: BTreeMap<String, RegisteredPolicy>,
    /// The agents of this server, except the one that is checked.
    pub agents: BTreeSet<String>,
    /// The names that definitions of clients may use.
    pub clients: ClientRules,
}

impl ValidationContext {
    /// Returns what tells a listed policy from the others in its list: its name, and the setting by which several of
    /// its kind differ.
    pub(super) fn instance_of(&self, policy: &Policy) -> (String, Option<String>) {
        let registered = self.middleware.get(&policy.name);
        let setting = registered.and_then(|registered| policy.settings.get(registered.distinguished_by?));
        (policy.name.clone(), setting.map(Value::to_string))
    }

    /// Returns the message about a policy that is listed twice.
    pub(super) fn repeated(&self, name: &str) -> String {
        let setting = self
            .middleware
            .get(name)
            .and_then(|registered| registered.distinguished_by);
        let same = setting.map(|setting| format!(" with the same `{setting}`"));
        format!("`{name}` is listed twice{}", same.unwrap_or_default())
    }

    /// Returns the setting of the policy of this name that is the name of a model.
    pub fn model_setting(&self, policy: &str) -> Option<&'static str> {
        self.middleware.get(policy)?.model_setting
    }

    /// Returns the model that a listed policy names, with the setting that does.
    pub(super) fn model_of<'a>(&self, policy: &'a Policy) -> Option<(&'static str, &'a str)> {
        let setting = self.model_setting(&policy.name)?;
        Some((setting, policy.text(setting)?))
    }

    /// Returns the tools of the agent that a listed policy names, each with its place below `field`, that of the policy.
    pub(super) fn tools_of<'a>(&self, policy: &'a Policy, field: &FieldPath) -> Vec<(FieldPath, &'a str)> {
        let registered = self.middleware.get(&policy.name);
        let setting = registered.and_then(|registered| registered.tools_setting);
        setting.map(|setting| policy.names(setting, field)).unwrap_or_default()
    }
}

/// The part of a registered policy that definitions have to know.
#[derive(Clone, Default)]
pub struct RegisteredPolicy {
    check: Option<Arc<CheckSettings>>,
    /// The setting by which several of its kind in one list differ.
    distinguished_by: Option<&'static str>,
    /// The setting that is the name of a model.
    model_setting: Option<&'static str>,
    /// The setting that names a tool or tools of the agent.
    tools_setting: Option<&'static str>,
    /// The tools that it contributes.
    tools: BTreeSet<String>,
}

/// Checks settings; returns `None` if the policy takes no settings.
type CheckSettings = dyn Fn(&Map<String, Value>) -> Option<Vec<Diagnostic>> + Send + Sync;

impl RegisteredPolicy {
    /// Creates a policy whose settings `check` checks. `check` returns `None` if the policy takes no settings.
    pub fn new(check: impl Fn(&Map<String, Value>) -> Option<Vec<Diagnostic>> + Send + Sync + 'static) -> Self {
        Self {
            check: Some(Arc::new(check)),
            ..Self::default()
        }
    }

    /// Allows several policies of this name in one list, if they differ in this setting.
    #[must_use]
    pub fn distinguished_by(self, setting: Option<&'static str>) -> Self {
        Self {
            distinguished_by: setting,
            ..self
        }
    }

    /// Sets the setting that is the name of a model.
    #[must_use]
    pub fn with_model_setting(self, setting: Option<&'static str>) -> Self {
        Self {
            model_setting: setting,
            ..self
        }
    }

    /// Sets the setting that names a tool or tools of the agent.
    #[must_use]
    pub fn with_tools_setting(self, setting: Option<&'static str>) -> Self {
        Self {
            tools_setting: setting,
            ..self
        }
    }

    /// Adds the names of the tools that the policy contributes.
    #[must_use]
    pub fn with_tools(self, tools: impl IntoIterator<Item = String>) -> Self {
        Self {
            tools: tools.into_iter().collect(),
            ..self
        }
    }

    /// Checks these settings; returns `None` if the policy takes no settings.
    pub fn check(&self, settings: &Map<String, Value>) -> Option<Vec<Diagnostic>> {
        self.check.as_ref().and_then(|check| check(settings))
    }
}

impl fmt::Debug for RegisteredPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredPolicy").finish_non_exhaustive()
    }
}

/// Checks the definition of an agent. The fields of the diagnostics are relative to the definition.
pub fn check_agent(graph_id: &str, agent: &AgentDefinition, context: &ValidationContext) -> Vec<Diagnostic> {
    let mut check = Check::new(context);
    check.servers.extend(agent.mcp_servers.keys().cloned());
    let top = FieldPath::default();
    if let Some(problem) = names::graph_id_problem(graph_id) {
        check.error(&top, problem);
    }
    check.names(agent);
    check.not_blank(&top.then("name"), agent.name.as_deref());
    check.not_blank(&top.then("description"), agent.description.as_deref());
    if agent.is_program() {
        check.program(agent);
        return check.findings;
    }
    check.models(&top.then("model"), &agent.model);
    check
        .findings
        .extend(check_settings(&top.then("model_settings"), &agent.model_settings));
    check
        .findings
        .extend(check_servers(&top.then("mcp_servers"), &agent.mcp_servers));
    check.tools(&top.then("tools"), &agent.tools);
    check.approvers(&top.then("approvers"), &agent.approvers);
    if let Some(schema) = &agent.context_schema {
        check.schema(&top.then("context_schema"), schema);
    }
    check.not_blank(&top.then("task_description"), agent.task_description.as_deref());
    check.not_blank(&top.then("task_system_prompt"), agent.task_system_prompt.as_deref());
    check.steps(&top.then("recursion_limit"), agent.recursion_limit);
    check.limits(&top.then("limits"), agent.limits.as_ref(), true);
    if agent.max_subagent_depth.is_some_and(|depth| depth > DEEPEST) {
        check.error(
            &top.then("max_subagent_depth"),
            format!("must be a whole number from 0 to {DEEPEST}"),
        );
    }
    if agent.max_subagent_depth == Some(0) && !agent.subagents.is_empty() {
        check.warn(
            &top.then("max_subagent_depth"),
            "is 0, so that the subagents are never called",
        );
    }
    check.findings.extend(agent.store.check(&top.then("store")));
    check.summarization(&top.then("summarization"), &agent.summarization);
    for (field, workspace) in agent.workspaces() {
        check.findings.extend(workspace.check(&field, &context.sandboxes));
    }
    check.findings.extend(agent.check_execution(&agent.resolved()));
    check.skills_and_memory(&top, &SkillsAndMemory::of_agent(agent));
    check.policies(agent);
    check.state_fields(&top.then("state"), &agent.state);
    check.general_purpose(agent, &agent.resolved());
    if agent.unknown_subagent == Some(UnknownSubagent::Fallback) && agent.general_subagent().is_none() {
        let message = "is `fallback`, but there is no general-purpose subagent to fall back to";
        check.error(&top.then("unknown_subagent"), message);
    }
    // The resolved form is checked, so that all spellings of one meaning are treated alike.
    let resolved = agent.resolved();
    check.approvals(
        &top.then("interrupt_on"),
        &resolved.interrupt_on,
        &toolset::approvable(&resolved),
    );
    check.changed_tools(
        &top,
        &agent.excluded_tools,
        &agent.tool_description_overrides,
        &toolset::approvable(&resolved),
    );
    check.answer(&top, agent.response_format.as_ref(), &toolset::of_agent(&resolved));
    check.subagents(agent, &resolved);
    check.locations(graph_id, agent);
    if !agent.headers.is_empty() {
        let message = "goes with `graph_id` and `url` only: it is sent to the server of that agent";
        check.error(&top.then("headers"), message);
    }
    check
        .findings
        .extend(agent.check_registered(context).into_iter().chain(agent.check_prompts()));
    check.findings.extend(agent.check_configurable(context));
    check.findings
}

/// Checks the name of a model in `field`.
pub fn check_model(field: &FieldPath, model: &str, context: &ValidationContext) -> Vec<Diagnostic> {
    let mut check = Check::new(context);
    check.model(field, model);
    check.findings
}

/// Returns whether a tool of this name may exist: a declared tool, a tool of a policy, or a tool of an MCP server.
pub(super) fn is_known_tool(name: &str, context: &ValidationContext) -> bool {
    is_policy_tool(name)
        || context.tools.contains(name)
        || McpReference::read(name).is_some_and(|reference| reference.problem(&context.mcp_servers).is_none())
}

/// Returns whether a rule about `tool` concerns one of `tools`. The lists of MCP servers are not known here.
fn is_among(tool: &str, tools: &BTreeSet<&str>) -> bool {
    let Some(reference) = McpReference::read(tool) else {
        return tools.contains(tool);
    };
    let all = format!("{}/", reference.server);
    tools.contains(tool)
        || tools.contains(format!("{all}*").as_str())
        || reference.tool.is_none() && tools.iter().any(|name| name.starts_with(&all))
}

/// Returns the reason why a tool of the server cannot be listed among the declared tools.
fn unlisted(builtin: &Builtin, tool: &str) -> String {
    match builtin.listing {
        Listing::Listed { field: Some(field), .. } => {
            format!("`{tool}` is not declared but switched on: `{field} = true`")
        }
        Listing::Listed { field: None, .. } => {
            let policy = builtin.name;
            format!("`{tool}` is not declared but comes with the policy `{policy}`, which `middleware` can list")
        }
        Listing::Always(_) | Listing::Implied => format!("`{tool}` comes with the server and is not listed"),
    }
}

struct Check<'a> {
    context: &'a ValidationContext,
    /// The MCP servers whose tools can be named here.
    servers: BTreeSet<String>,
    findings: Vec<Diagnostic>,
}

impl<'a> Check<'a> {
    fn new(context: &'a ValidationContext) -> Self {
        Self {
            context,
            servers: context.mcp_servers.clone(),
            findings: Vec::new(),
        }
    }
}

impl Check<'_> {
    fn error(&mut self, field: &FieldPath, message: impl Into<String>) {
        self.findings.push(Diagnostic::error(field.clone(), message));
    }

    fn warn(&mut self, field: &FieldPath, message: impl Into<String>) {
        self.findings.push(Diagnostic::warning(field.clone(), message));
    }

    fn not_blank(&mut self, field: &FieldPath, text: Option<&str>) {
        if text.is_some_and(|text| text.trim().is_empty()) {
            self.error(field, "must not be blank; leave it out for the default");
        }
    }

    fn required(&mut self, field: &FieldPath, text: &str, purpose: &str) {
        if text.trim().is_empty() {
            self.error(field, format!("must be given: {purpose}"));
        }
    }

    fn models(&mut self, field: &FieldPath, models: &ModelNames) {
        if models.fallbacks().is_empty() {
            return self.model(field, models.first());
        }
        let names = models.all();
        if names.len() > MAX_MODEL_NAMES {
            self.error(
                field,
                format!("must have at most {MAX_MODEL_NAMES} models, not {}", names.len()),
            );
        }
        let mut seen = BTreeSet::new();
        for (at, name) in names.iter().enumerate() {
            let field = field.then(at);
            self.model(&field, name);
            if !seen.insert(name) {
                self.error(&field, format!("`{name}` is listed twice; each model is asked once"));
            }
        }
    }

    fn model(&mut self, field: &FieldPath, model: &str) {
        if model.trim().is_empty() {
            return self.error(field, "must be given, as `provider:model-name`");
        }
        match model.split_once(':') {
            Some((provider, name)) if !provider.is_empty() && !name.is_empty() => {
                if !self.context.providers.contains(provider) {
                    let known = self.context.providers.iter().map(String::as_str);
                    let known = suggestion(provider, known, "known are");
                    let way_out = format!("a section `[providers.{provider}]` with its `kind` adds one");
                    self.error(field, format!("there is no provider `{provider}`; {known}; {way_out}"));
                }
            }
            Some(_) | None => self.error(field, format!("`{model}` must be `provider:model-name`")),
        }
    }

    fn tools(&mut self, field: &FieldPath, tools: &[String]) {
        let mut seen = BTreeSet::new();
        for (at, tool) in tools.iter().enumerate() {
            let field = field.then(at);
            if !seen.insert(tool) {
                self.warn(&field, format!("`{tool}` is listed twice"));
            } else if let Some(builtin) = Builtin::with_tool(tool) {
                self.error(&field, unlisted(builtin, tool));
            } else if let Some(reference) = McpReference::read(tool) {
                let problem = reference.problem(&self.servers);
                problem.into_iter().for_each(|problem| self.error(&field, problem));
            } else if !self.context.tools.contains(tool) {
                let known = self.context.tools.iter().map(String::as_str);
                let known = suggestion(tool, known, "declared are");
                self.error(&field, format!("there is no tool `{tool}`; {known}"));
            }
        }
    }

    fn summarization(&mut self, field: &FieldPath, rule: &SummarizationRule) {
        self.findings.extend(rule.check(field));
        if let Some(model) = rule.model() {
            self.model(&field.then("model"), model);
        }
    }

    fn steps(&mut self, field: &FieldPath, limit: Option<u32>) {
        if limit == Some(0) {
            self.error(field, "must be a whole number of at least 1");
        }
    }

    fn limits(&mut self, field: &FieldPath, limits: Option<&Limits>, has_tree: bool) {
        let Some(limits) = limits else { return };
        if limits.depth.is_some_and(|depth| depth > DEEPEST) {
            self.error(
                &field.then("depth"),
                format!("must be a whole number from 0 to {DEEPEST}"),
            );
        }
        let positive = [
            ("model_calls", limits.model_calls),
            ("tokens", limits.tokens),
            ("children_at_once", limits.children_at_once),
        ];
        for (name, _) in positive.into_iter().filter(|(_, limit)| *limit == Some(0)) {
            self.error(&field.then(name), "must be a whole number of at least 1");
        }
        if limits
            .wall_s
            .is_some_and(|seconds| !seconds.is_finite() || seconds < SHORTEST_TIMEOUT_S)
        {
            let message = format!("must be a number of seconds of at least {SHORTEST_TIMEOUT_S}");
            self.error(&field.then("wall_s"), message);
        }
        // Usage counts in millionths, so a smaller limit would be 0.
        if limits.cost.is_some_and(|cost| !cost.is_finite() || cost < 0.000_001) {
            self.error(&field.then("cost"), "must be a number of at least 0.000001");
        }
        match limits.tree.as_deref() {
            Some(_) if !has_tree => self.error(&field.then("tree"), "is for the main agent, at the top of the tree"),
            Some(tree) => {
                if tree.repeated_failures.is_some() {
                    let field = field.then("tree").then("repeated_failures");
                    self.error(&field, "is counted in each run by itself; set it in `limits`");
                }
                self.limits(&field.then("tree"), Some(tree), false);
            }
            None => {}
        }
    }

    fn state_fields(&mut self, section: &FieldPath, fields: &BTreeMap<String, FieldDefinition>) {
        for (name, definition) in fields {
            let field = section.then(name);
            if !is_word(name, 64, "") {
                self.error(&field, "must be 1 to 64 letters, digits, `_` or `-`");
            } else if is_private(name) || is_standard_field(name) {
                self.error(
                    &field,
                    format!("the name `{name}` belongs to the server; choose another"),
                );
            }
            if let Some(Err(error)) = definition.schema.as_ref().map(Schema::compile) {
                self.error(&field.then("schema"), format!("is not a JSON Schema: {error}"));
            }
        }
    }

    fn general_purpose(&mut self, agent: &AgentDefinition, resolved: &AgentDefinition) {
        let field = FieldPath::of(["general_purpose_subagent"]);
        let general = &agent.general_purpose_subagent;
        self.not_blank(&field.then("name"), general.name.as_deref());
        self.not_blank(&field.then("description"), general.description.as_deref());
        if let Some(model) = &general.model {
            self.models(&field.then("model"), model);
        }
        if let Some(tools) = &general.tools {
            self.tools(&field.then("tools"), tools);
        }
        if let Some(rules) = &general.interrupt_on {
            self.approvals(&field.then("interrupt_on"), rules, &toolset::of_general(resolved));
        }
    }

    fn approvals(&mut self, field: &FieldPath, rules: &BTreeMap<String, ApprovalRule>, tools: &BTreeSet<&str>) {
        for (tool, rule) in rules {
            let field = field.then(tool);
            if !is_among(tool, tools) {
                let known = tools.iter().filter(|name| !is_policy_tool(name)).copied();
                let known = suggestion(tool, known, "it has");
                self.error(&field, format!("the agent has no tool `{tool}`; {known}"));
            }
            let ApprovalRule::Choices(choices) = rule else { continue };
            if choices.allowed_decisions.is_empty() {
                let allowed = "must name at least one of approve, edit, reject, respond";
                self.error(&field.then("allowed_decisions"), allowed);
            }
            self.approvers(&field.then("approvers"), &choices.approvers);
            self.expiry(&field, choices);
            if choices.allowed_scopes.as_ref().is_some_and(Vec::is_empty) {
                self.error(&field.then("allowed_scopes"), "must name at least one of once, thread");
            }
            if let Some(Err(invalid)) = choices.when.as_ref().map(ArgumentCondition::compile) {
                let place = invalid
                    .place
                    .iter()
                    .fold(field.then("when"), |field, part| field.then(part));
                self.error(&place, invalid.reason);
            }
            self.description(
                &field.then("description"),
                choices.description.as_deref().unwrap_or_default(),
            );
        }
    }

    fn expiry(&mut self, field: &FieldPath, choices: &ApprovalChoices) {
        if choices
            .expires_after_s
            .is_some_and(|after| !(1..=MAX_EXPIRY_S).contains(&after))
        {
            let message = format!("must be a whole number from 1 to {MAX_EXPIRY_S}");
            self.error(&field.then("expires_after_s"), message);
        }
        let Some(ExpiryDecision(decision)) = &choices.on_expiry else {
            return;
        };
        let field = field.then("on_expiry");
        if choices.expires_after_s.is_none() {
            self.error(&field, "needs `expires_after_s`: without it, no question expires");
        }
        if matches!(decision, Decision::Edit { .. }) {
            self.error(&field, "must be approve, reject or respond: an edit is about one call");
        }
    }

    fn description(&mut self, field: &FieldPath, template: &str) {
        let length = template.chars().count();
        if length > MAX_DESCRIPTION {
            let message = format!("has {length} characters; at most {MAX_DESCRIPTION} are allowed");
            self.error(field, message);
        }
        for name in unknown_slots(template) {
            let message =
                format!("`{{{name}}}` is not replaced; slots are {{name}}, {{args}}, {{args.NAME}}, {{tool_call_id}}");
            self.warn(field, message);
        }
    }

    fn approvers(&mut self, field: &FieldPath, approvers: &Approvers) {
        if let Some(problem) = approvers.problem() {
            self.error(field, problem);
        }
    }

    /// Checks an agent that is a program, or an agent of another server.
    fn program(&mut self, agent: &AgentDefinition) {
        let top = FieldPath::default();
        self.findings.extend(agent.check_program(self.context));
        self.approvers(&top.then("approvers"), &agent.approvers);
        if let Some(schema) = &agent.context_schema {
            self.schema(&top.then("context_schema"), schema);
        }
        self.steps(&top.then("recursion_limit"), agent.recursion_limit);
        self.limits(&top.then("limits"), agent.limits.as_ref(), true);
        self.state_fields(&top.then("state"), &agent.state);
        self.answer(&top, agent.response_format.as_ref(), &BTreeSet::new());
    }

    fn subagents(&mut self, agent: &AgentDefinition, resolved: &AgentDefinition) {
        let list = FieldPath::of(["subagents"]);
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let mut descriptions: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, subagent) in agent.subagents.iter().enumerate() {
            let field = list.then(at);
            self.required(&field.then("name"), &subagent.name, "the name it is called by");
            self.required(
                &field.then("description"),
                &subagent.description,
                "the delegating model chooses by it",
            );
            if let Some(first) = names.get(subagent.name.as_str()).filter(|_| !subagent.name.is_empty()) {
                let message = format!("`{}` is already the name of subagents[{first}]", subagent.name);
                self.error(&field.then("name"), message);
            }
            names.entry(&subagent.name).or_insert(at);
            let description = subagent.description.trim();
            if let Some(first) = descriptions.get(description).filter(|_| !description.is_empty()) {
                let message = format!("is the same as that of subagents[{first}], so that no model can choose");
                self.warn(&field.then("description"), message);
            } else if (1..SHORT_DESCRIPTION).contains(&description.chars().count()) {
                let message = format!("has less than {SHORT_DESCRIPTION} characters: a model can hardly choose by it");
                self.warn(&field.then("description"), message);
            }
            descriptions.entry(description).or_insert(at);
            self.subagent(&field, subagent, agent);
            self.tools_of(&field, subagent, &resolved.subagents[at], resolved);
        }
    }

    /// Checks subagents that are defined elsewhere.
    fn locations(&mut self, graph_id: &str, agent: &AgentDefinition) {
        let mut agents = self.context.agents.clone();
        agents.insert(graph_id.to_owned());
        for (at, subagent) in agent.subagents.iter().enumerate() {
            let field = FieldPath::of(["subagents"]).then(at);
            self.findings.extend(subagent.check_location(&field, &agents));
        }
        self.findings.extend(agent.check_background_names());
    }

    fn subagent(&mut self, field: &FieldPath, subagent: &SubagentDefinition, parent: &AgentDefinition) {
        let settings = subagent.model_settings.iter();
        let settings = settings.flat_map(|settings| check_settings(&field.then("model_settings"), settings));
        self.findings.extend(settings);
        if let Some(model) = &subagent.model {
            self.models(&field.then("model"), model);
        }
        self.findings
            .extend(check_servers(&field.then("mcp_servers"), &subagent.mcp_servers));
        let outer = self.servers.clone();
        self.servers.extend(subagent.mcp_servers.keys().cloned());
        if let Some(tools) = &subagent.tools {
            self.tools(&field.then("tools"), tools);
        }
        self.skills_and_memory(field, &SkillsAndMemory::of_subagent(subagent, parent));
        self.servers = outer;
        if let Some(approvers) = &subagent.approvers {
            self.approvers(&field.then("approvers"), approvers);
        }
        if let Some(store) = &subagent.store {
            self.findings.extend(store.check(&field.then("store")));
        }
        if let Some(rule) = &subagent.summarization {
            self.summarization(&field.then("summarization"), rule);
        }
        self.steps(&field.then("recursion_limit"), subagent.recursion_limit);
        self.limits(&field.then("limits"), subagent.limits.as_ref(), false);
        self.not_blank(&field.then("use_instructions"), subagent.use_instructions.as_deref());
        self.not_blank(&field.then("display_text"), subagent.display_text.as_deref());
    }

    /// Checks the rules of a subagent about its tools; `subagent` and `parent` are resolved.
    fn tools_of(
        &mut self,
        field: &FieldPath,
        own: &SubagentDefinition,
        subagent: &SubagentDefinition,
        parent: &AgentDefinition,
    ) {
        if let Some(rules) = &subagent.interrupt_on {
            // The rules of its parent may concern tools that the subagent does not have.
            let is_parents = |name: &&String| own.inherit.interrupt_on && parent.interrupt_on.contains_key(*name);
            let rules = rules.iter().filter(|(name, _)| !is_parents(name));
            let rules = rules.map(|(name, rule)| (name.clone(), rule.clone())).collect();
            let mut tools = toolset::of_subagent(subagent, parent);
            tools.insert("task");
            self.approvals(&field.then("interrupt_on"), &rules, &tools);
        }
        let tools = toolset::of_subagent(subagent, parent);
        self.changed_tools(
            field,
            &subagent.excluded_tools,
            &subagent.tool_description_overrides,
            &tools,
        );
        self.answer(field, subagent.response_format.as_ref(), &tools);
        self.until_tool(&field.then("until_tool"), subagent, parent);
    }

    fn until_tool(&mut self, field: &FieldPath, subagent: &SubagentDefinition, parent: &AgentDefinition) {
        let Some(until) = &subagent.until_tool else { return };
        if subagent.response_format.is_some() {
            self.error(
                field,
                "goes without `response_format` only: both say what the result is",
            );
        }
        if until.names().is_empty() {
            self.error(field, "must name a tool; leave it out for none");
        }
        let tools = toolset::of_subagent(subagent, parent);
        for name in until.names().iter().filter(|name| !is_among(name, &tools)) {
            let known = suggestion(name, tools.iter().copied(), "it has");
            self.error(field, format!("the subagent has no tool `{name}`; {known}"));
        }
    }

    /// Checks the form of the answer of the agent in `field`, which has these tools.
    fn answer(&mut self, field: &FieldPath, format: Option<&Value>, tools: &BTreeSet<&str>) {
        let field = field.then("response_format");
        let found = format.map(|format| answer::check(&field, format, |name| tools.contains(name)));
        self.findings.extend(found.unwrap_or_default());
    }

    /// Checks excluded tools and descriptions of tools, of an agent that has these tools.
    fn changed_tools(
        &mut self,
        field: &FieldPath,
        excluded: &[String],
        described: &BTreeMap<String, String>,
        tools: &BTreeSet<&str>,
    ) {
        let names = described
            .keys()
            .map(|name| (field.then("tool_description_overrides").then(name), name));
        let excluded = excluded.iter().enumerate();
        let all = names.chain(excluded.map(|(at, name)| (field.then("excluded_tools").then(at), name)));
        let is_task = |name: &str| Builtin::tools_of(SUBAGENTS).contains(&name);
        for (place, name) in all.filter(|(_, name)| !is_among(name, tools) && !is_task(name)) {
            let known = suggestion(name, tools.iter().copied(), "it has");
            self.error(&place, format!("the agent has no tool `{name}`; {known}"));
        }
        for (name, text) in described {
            self.required(
                &field.then("tool_description_overrides").then(name),
                text,
                "the model chooses by it",
            );
        }
    }

    /// Checks a schema of arguments or contexts, which has to be a valid schema of an object.
    fn schema(&mut self, field: &FieldPath, schema: &Value) {
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return self.error(
                field,
                "must be a JSON Schema of an object: `type = \"object\"`, `properties`, …",
            );
        }
        self.findings.extend(answer::schema_problem(field, schema));
    }
}
