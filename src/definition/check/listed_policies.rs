//! Checks listed policies: their names and their settings.

use std::collections::BTreeSet;

use serde_json::Value;

use super::models::check_model;
use crate::definition::agent::{AgentDefinition, SubagentDefinition};
use crate::definition::builtins::{
    APPROVAL, ASK_USER, Builtin, ELSEWHERE, Listing, MEMORY, SKILLS, STORE, TODOS, UNTIL,
};
use crate::definition::diagnostic::{Diagnostic, FieldPath, suggestion};
use crate::definition::listed_settings::{ListedSettings, Settings};
use crate::definition::policy::Policy;
use crate::definition::read::read;
use crate::definition::source::{check_paths, check_skills};
use crate::definition::store::StoreRule;
use crate::definition::validation_context::ValidationContext;

impl AgentDefinition {
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
        let mut findings = check_list(&FieldPath::of(["middleware"]), &self.middleware, &fields, context);
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
        check_list(&field.then("middleware"), &self.middleware, &fields, context)
    }
}

/// Checks listed policies. `given` lists the policies whose settings are also given in a field of the same meaning.
pub(super) fn check_list(
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
        if let Some(problem) = name_problem(name, "is not listed", context).filter(|_| !is_replacement(name, context)) {
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

/// Returns whether the program has registered a policy in the place of the one of the server with this name.
fn is_replacement(name: &str, context: &ValidationContext) -> bool {
    context.middleware.contains_key(name) && Builtin::find(name).is_some_and(|builtin| builtin.is_replaceable)
}

/// Returns the reason why a policy of this name can be neither listed nor blocked: none has the name, or that one is
/// always there, and `refusal` says so.
pub(super) fn name_problem(name: &str, refusal: &str, context: &ValidationContext) -> Option<String> {
    if let Some(Listing::Always(why)) = Builtin::find(name).map(|builtin| &builtin.listing) {
        return Some(format!("`{name}` {refusal}: it {why}"));
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
        (Some((skills, _)), _) => (skills.len(), check_skills(&field, skills)),
        (None, Some(memory)) => (memory.len(), check_paths(&field, memory.iter().map(String::as_str))),
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
