//! The policies of an agent that a definition lists by name, in their order.
//!
//! The settings of a built-in policy can also be given in a field. [`AgentDefinition::resolved`] moves them into that
//! field, so that all other code handles one form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::builtins::{
    APPROVAL, ASK_USER, Builtin, ELSEWHERE, Listing, MEMORY, OTHER_NAMES, SKILLS, STORE, TODOS, UNTIL,
};
use super::check::{ValidationContext, check_model};
use super::diagnostic::{Diagnostic, FieldPath, suggestion};
use super::{
    AgentDefinition, ApprovalRule, InterruptMode, NamedSource, NamespaceAccess, SkillSource, StoreRule,
    SubagentDefinition, UntilTool, read, source,
};

/// A policy by its name, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The name of a built-in policy, or of one that the embedding program has registered.
    pub name: String,
    /// The settings.
    pub settings: Map<String, Value>,
}

impl Policy {
    /// Creates the policy of this name without settings.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            settings: Map::new(),
        }
    }

    /// Returns the text in a setting.
    pub fn text(&self, setting: &str) -> Option<&str> {
        self.settings.get(setting).and_then(Value::as_str)
    }

    /// Returns the names in a setting, which is a text or a list, each with its place below `field`, that of the policy.
    pub(super) fn names(&self, setting: &str, field: &FieldPath) -> Vec<(FieldPath, &str)> {
        let Some(named) = self.settings.get(setting) else {
            return vec![];
        };
        let field = field.then(setting);
        let all = named.as_array().into_iter().flatten().enumerate();
        let all = all.filter_map(|(at, name)| Some((field.then(at), name.as_str()?)));
        let one = named.as_str().map(|name| (field.clone(), name));
        one.into_iter().chain(all).collect()
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.settings.is_empty() {
            return serializer.serialize_str(&self.name);
        }
        let mut map = serializer.serialize_map(Some(self.settings.len() + 1))?;
        map.serialize_entry("name", &self.name)?;
        self.settings
            .iter()
            .try_for_each(|(key, value)| map.serialize_entry(key, value))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Policy {
    /// Written by hand, since the derived code would only report that no variant matched.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Listed;

        impl<'de> Visitor<'de> for Listed {
            type Value = Policy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a policy or a table with `name` and its settings")
            }

            fn visit_str<E>(self, name: &str) -> Result<Policy, E> {
                Ok(Policy::named(name))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
                let mut settings = Map::deserialize(MapAccessDeserializer::new(map))?;
                let name = match settings.shift_remove("name") {
                    Some(Value::String(name)) => name,
                    Some(_) | None => String::new(),
                };
                rename(&name, &mut settings);
                Ok(Policy { name, settings })
            }
        }

        deserializer.deserialize_any(Listed)
    }
}

/// Gives the settings of the policy of this name that have the names of LangChain those of the server.
fn rename(policy: &str, settings: &mut Map<String, Value>) {
    for (_, other, own) in OTHER_NAMES.iter().filter(|(name, ..)| *name == policy) {
        // With both names the other one is an unknown key.
        if !settings.contains_key(*own)
            && let Some(value) = settings.shift_remove(*other)
        {
            settings.insert((*own).to_owned(), value);
        }
    }
}

/// The settings of all built-in policies; each has some of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    namespace: Option<Vec<String>>,
    read_only: bool,
    sources: Vec<Value>,
    tools: Vec<String>,
    interrupt_on: BTreeMap<String, ApprovalRule>,
    interrupt_mode: InterruptMode,
}

/// The values of fields that listed policies set.
#[derive(Debug, Default)]
struct ListedSettings {
    todos: bool,
    ask_user: bool,
    store: Option<StoreRule>,
    skills: Option<(Vec<SkillSource>, Vec<String>)>,
    memory: Option<Vec<String>>,
    interrupt_on: Option<BTreeMap<String, ApprovalRule>>,
    interrupt_mode: Option<InterruptMode>,
    until: Option<UntilTool>,
}

impl ListedSettings {
    /// Reads the settings of these policies. Invalid ones are left out, since a check has reported them.
    fn of(policies: &[Policy]) -> Self {
        let mut values = Self::default();
        for policy in policies {
            let settings = || {
                read::<Settings>(Value::Object(policy.settings.clone()))
                    .value
                    .unwrap_or_default()
            };
            match policy.name.as_str() {
                TODOS => values.todos = true,
                ASK_USER => values.ask_user = true,
                STORE => values.store = Some(store(settings())),
                SKILLS => {
                    let Settings { sources, tools, .. } = settings();
                    values.skills = Some((valid_elements(sources), tools));
                }
                MEMORY => values.memory = Some(valid_elements(settings().sources)),
                APPROVAL => {
                    let settings = settings();
                    values.interrupt_mode = policy.settings.get("interrupt_mode").map(|_| settings.interrupt_mode);
                    values.interrupt_on = Some(settings.interrupt_on);
                }
                UNTIL => values.until = Some(UntilTool::Any(settings().tools)),
                _ => {}
            }
        }
        values
    }
}

fn store(settings: Settings) -> StoreRule {
    let standard = NamespaceAccess::default();
    let namespace = settings.namespace.unwrap_or(standard.namespace);
    StoreRule::Settings(NamespaceAccess {
        namespace,
        read_only: settings.read_only,
    })
}

fn valid_elements<T: serde::de::DeserializeOwned>(values: Vec<Value>) -> Vec<T> {
    values
        .into_iter()
        .filter_map(|value| serde_json::from_value(value).ok())
        .collect()
}

impl AgentDefinition {
    /// Returns the definition in one form. The settings of listed policies, and everything that subagents inherit, are
    /// in the fields of the same meaning.
    #[must_use]
    pub fn resolved(&self) -> Self {
        let mut agent = self.clone();
        let values = ListedSettings::of(&self.middleware);
        agent.todos |= values.todos;
        agent.ask_user |= values.ask_user;
        agent.store = values.store.unwrap_or(agent.store);
        (agent.skills, agent.skill_tools) = values.skills.unwrap_or((agent.skills, agent.skill_tools));
        agent.memory = values.memory.unwrap_or(agent.memory);
        agent.interrupt_on = values.interrupt_on.unwrap_or(agent.interrupt_on);
        agent.interrupt_mode = values.interrupt_mode.unwrap_or(agent.interrupt_mode);
        agent.subagents = self
            .subagents
            .iter()
            .map(|subagent| subagent.resolved(&agent))
            .collect();
        agent
    }

    /// Checks the listed policies.
    pub(super) fn check_policies(&self, context: &ValidationContext) -> Vec<Diagnostic> {
        let fields = [
            (TODOS, self.todos),
            (ASK_USER, self.ask_user),
            (STORE, self.store != StoreRule::default()),
            (SKILLS, !self.skills.is_empty()),
            (MEMORY, !self.memory.is_empty()),
            (APPROVAL, !self.interrupt_on.is_empty()),
        ];
        let mut findings = check(&FieldPath::of(["middleware"]), &self.middleware, &fields, context);
        for (at, policy) in self
            .middleware
            .iter()
            .enumerate()
            .filter(|(_, policy)| policy.name == UNTIL)
        {
            let message = format!(
                "`{}` is for subagents, which return a result to the agent that delegated",
                policy.name
            );
            findings.push(Diagnostic::error(FieldPath::of(["middleware"]).then(at), message));
        }
        findings
    }
}

impl SubagentDefinition {
    /// Returns the subagent in one form; the parent has to be resolved.
    pub(super) fn resolved(&self, parent: &AgentDefinition) -> Self {
        let mut subagent = self.inheriting(parent);
        let values = ListedSettings::of(&subagent.middleware);
        subagent.todos |= values.todos;
        subagent.ask_user |= values.ask_user;
        subagent.store = values.store.or(subagent.store);
        (subagent.skills, subagent.skill_tools) = values.skills.unwrap_or((subagent.skills, subagent.skill_tools));
        subagent.memory = values.memory.unwrap_or(subagent.memory);
        subagent.interrupt_on = values.interrupt_on.or(subagent.interrupt_on);
        subagent.interrupt_mode = values.interrupt_mode.or(subagent.interrupt_mode);
        subagent.until_tool = values.until.or(subagent.until_tool);
        subagent
    }

    /// Checks the listed policies.
    pub(super) fn check_policies(&self, field: &FieldPath, context: &ValidationContext) -> Vec<Diagnostic> {
        let fields = [
            (TODOS, self.todos),
            (ASK_USER, self.ask_user),
            (STORE, self.store.is_some()),
            (SKILLS, !self.skills.is_empty()),
            (MEMORY, !self.memory.is_empty()),
            (APPROVAL, self.interrupt_on.is_some()),
            (UNTIL, self.until_tool.is_some()),
        ];
        check(&field.then("middleware"), &self.middleware, &fields, context)
    }
}

/// Adds to a resolved subagent those of the policies that it does not have.
pub(super) fn add(subagent: &mut SubagentDefinition, policies: &[Policy]) {
    let values = ListedSettings::of(policies);
    subagent.todos |= values.todos;
    subagent.ask_user |= values.ask_user;
    let is_idle = subagent
        .store
        .as_ref()
        .is_none_or(|store| *store == StoreRule::default());
    subagent.store = values.store.filter(|_| is_idle).or(subagent.store.take());
    if subagent.skills.is_empty() {
        (subagent.skills, subagent.skill_tools) = values.skills.unwrap_or_default();
    }
    if subagent.memory.is_empty() {
        subagent.memory = values.memory.unwrap_or_default();
    }
    if subagent.interrupt_on.as_ref().is_none_or(BTreeMap::is_empty) {
        subagent.interrupt_on = values.interrupt_on.or(subagent.interrupt_on.take());
        subagent.interrupt_mode = subagent.interrupt_mode.or(values.interrupt_mode);
    }
    let is_listed = |name: &str| subagent.middleware.iter().any(|policy| policy.name == name);
    let new: Vec<Policy> = policies
        .iter()
        .filter(|policy| !is_listed(&policy.name))
        .cloned()
        .collect();
    subagent.middleware.extend(new);
}

/// Removes the policies of these names from a resolved subagent.
pub(super) fn remove(subagent: &mut SubagentDefinition, names: &[String]) {
    subagent.middleware.retain(|policy| !names.contains(&policy.name));
    for name in names {
        match name.as_str() {
            TODOS => subagent.todos = false,
            ASK_USER => subagent.ask_user = false,
            STORE => subagent.store = Some(StoreRule::default()),
            SKILLS => (subagent.skills, subagent.skill_tools) = Default::default(),
            MEMORY => subagent.memory.clear(),
            APPROVAL => subagent.interrupt_on = Some(BTreeMap::new()),
            UNTIL => subagent.until_tool = None,
            _ => {}
        }
    }
}

/// Checks listed policies. `given` lists the policies whose settings are also given in a field of the same meaning.
pub(super) fn check(
    list: &FieldPath,
    policies: &[Policy],
    given: &[(&str, bool)],
    context: &ValidationContext,
) -> Vec<Diagnostic> {
    let mut seen = BTreeSet::new();
    let mut findings = vec![];
    for (at, policy) in policies.iter().enumerate() {
        let field = list.then(at);
        let name = policy.name.as_str();
        if let Some(problem) = name_problem(name, context).filter(|_| !is_replacement(name, context)) {
            findings.push(Diagnostic::error(field, problem));
        } else if let Some(problem) = (!seen.insert(context.instance_of(policy))).then(|| context.repeated(name)) {
            findings.push(Diagnostic::error(field, problem));
        } else {
            findings.extend(check_settings(&field, policy, context));
            if let Some((setting, model)) = context.model_of(policy) {
                findings.extend(check_model(&field.then(setting), model, context));
            }
            let is_given = given.iter().any(|(other, is_given)| *other == name && *is_given);
            if let Some(other) = Builtin::field(name).filter(|_| is_given) {
                let message = format!("`{name}` is also given as the field `{other}`");
                findings.push(Diagnostic::error(field, message));
            }
        }
    }
    findings
}

/// Returns the files and folders that listed policies name.
pub(super) fn named_sources(list: &FieldPath, policies: &[Policy]) -> Vec<NamedSource> {
    let mut all = vec![];
    for (at, policy) in policies.iter().enumerate() {
        let values = ListedSettings::of(std::slice::from_ref(policy));
        let field = list.then(at).then("sources");
        if let Some((sources, tools)) = &values.skills {
            all.extend(source::entries(
                &field,
                sources.iter().map(SkillSource::path),
                Some(tools),
            ));
        }
        all.extend(source::entries(
            &field,
            values.memory.iter().flatten().map(String::as_str),
            None,
        ));
    }
    all
}

/// Returns whether the program has registered a policy in the place of the one of the server with this name.
fn is_replacement(name: &str, context: &ValidationContext) -> bool {
    context.middleware.contains_key(name) && Builtin::find(name).is_some_and(|builtin| builtin.is_replaceable)
}

/// Returns the reason why no policy of the server with this name can be listed, and why there is no other.
pub(super) fn name_problem(name: &str, context: &ValidationContext) -> Option<String> {
    if let Some(Listing::Always(why)) = Builtin::find(name).map(|builtin| &builtin.listing) {
        return Some(format!("`{name}` is not listed: it {why}"));
    }
    if Builtin::is_listed(name) || context.middleware.contains_key(name) {
        return None;
    }
    if name.is_empty() {
        return Some("must have a `name`, which is a text".to_owned());
    }
    if let Some((_, place)) = ELSEWHERE.iter().find(|(other, _)| *other == name) {
        return Some(format!("there is no policy `{name}`: {place}"));
    }
    let listed = Builtin::listed().map(|builtin| builtin.name);
    let registered = context.middleware.keys().map(String::as_str);
    let known = listed.chain(registered.filter(|name| !Builtin::is_listed(name)));
    Some(format!(
        "there is no policy `{name}`; {}",
        suggestion(name, known, "there are")
    ))
}

fn check_settings(field: &FieldPath, policy: &Policy, context: &ValidationContext) -> Vec<Diagnostic> {
    let (settings, required) = match Builtin::find(&policy.name).map(|builtin| &builtin.listing) {
        Some(Listing::Listed { settings, required, .. }) if !settings.is_empty() => (*settings, *required),
        // The policy reads its settings itself.
        Some(_) | None => return check_registered(field, policy, context),
    };
    let mut findings = read::<Settings>(Value::Object(policy.settings.clone())).findings;
    for key in policy.settings.keys().filter(|key| !settings.contains(&key.as_str())) {
        let known = suggestion(key, settings.iter().copied(), "allowed are");
        findings.push(Diagnostic::error(FieldPath::of([key]), format!("unknown key; {known}")));
    }
    for key in required.iter().filter(|key| !policy.settings.contains_key(**key)) {
        findings.push(Diagnostic::error(FieldPath::of([*key]), "must be given"));
    }
    findings.extend(check_sources(policy));
    findings.into_iter().map(|finding| finding.under(field)).collect()
}

/// Checks the settings of a registered policy.
fn check_registered(field: &FieldPath, policy: &Policy, context: &ValidationContext) -> Vec<Diagnostic> {
    let registered = context.middleware.get(&policy.name);
    let checked = registered.and_then(|registered| registered.check(&policy.settings));
    match checked {
        Some(findings) => findings.into_iter().map(|finding| finding.under(field)).collect(),
        None if policy.settings.is_empty() => vec![],
        None => {
            let message = format!("`{}` is the program's and takes no settings", policy.name);
            vec![Diagnostic::error(field.clone(), message)]
        }
    }
}

/// Checks the sources of skills or memory.
fn check_sources(policy: &Policy) -> Vec<Diagnostic> {
    let field = FieldPath::of(["sources"]);
    let values = ListedSettings::of(std::slice::from_ref(policy));
    let Some(given) = policy.settings.get("sources").and_then(Value::as_array) else {
        return vec![];
    };
    let (read, mut findings) = match (&values.skills, &values.memory) {
        (Some((skills, _)), _) => (skills.len(), source::check_skills(&field, skills)),
        (None, Some(memory)) => (
            memory.len(),
            source::check_paths(&field, memory.iter().map(String::as_str)),
        ),
        (None, None) => return vec![],
    };
    if read < given.len() {
        findings.push(Diagnostic::error(
            field,
            "must be a list of paths; those of skills may be tables with `path` and `label`",
        ));
    }
    findings
}

#[cfg(test)]
mod tests;
