//! Checks subagents that are separate agents, defined elsewhere: on this server, or on another one.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::definition::agent::{AgentDefinition, SubagentDefinition, SubagentMode};
use crate::definition::diagnostic::{Diagnostic, FieldPath, errors_of_given, suggestion};
use crate::definition::general_purpose::GENERAL_PURPOSE;
use crate::definition::headers::check_headers;
use crate::definition::location::Location;
use crate::definition::words::address_problem;
use crate::domain::delivery::{MASKED_ADDRESS, is_masked};

/// The fields that a reference to another agent may have: its name, the place of its definition, the way of calling it,
/// and the limits of one delegation.
const FIELDS_OF_REFERENCES: [&str; 17] = [
    "name",
    "description",
    "runnable",
    "initial_messages",
    "recursion_limit",
    "mode",
    "limits",
    "use_instructions",
    "visibility",
    "display_text",
    "graph_id",
    "url",
    "headers",
    "async",
    "webhook",
    "update_strategy",
    "notify_parent",
];

impl SubagentDefinition {
    /// Checks the place where the subagent is defined; `field` is the field of the subagent.
    pub(super) fn check_location(&self, field: &FieldPath, agents: &BTreeSet<String>) -> Vec<Diagnostic> {
        let mut findings = match self.location() {
            Location::Inside => self.check_reference_fields(field),
            Location::Local(graph_id) => self.check_own_fields(field, graph_id),
            Location::Remote { graph_id, url } => {
                let mut findings = self.check_own_fields(field, graph_id);
                findings.extend(check_url(field, url));
                findings
            }
        };
        if self.graph_id.is_some() {
            findings.extend(self.unknown_agent(field, agents));
            if !self.is_background() {
                findings.extend(self.check_background_fields(field));
            }
            if self.url.is_none() && !self.headers.is_empty() {
                let message = "goes with `url` only: nothing is sent to an agent on this server";
                findings.push(Diagnostic::error(field.then("headers"), message));
            }
        }
        findings.extend(check_headers(&field.then("headers"), &self.headers));
        let webhook = self.webhook.as_deref().and_then(webhook_problem);
        findings.extend(webhook.map(|problem| Diagnostic::error(field.then("webhook"), problem)));
        findings
    }

    /// Reports an agent that does not exist on this server.
    fn unknown_agent(&self, field: &FieldPath, agents: &BTreeSet<String>) -> Option<Diagnostic> {
        let Location::Local(graph_id) = self.location() else {
            return None;
        };
        let known = || suggestion(graph_id, agents.iter().map(String::as_str), "there are");
        let message = || format!("there is no agent `{graph_id}` on this server; {}", known());
        (!agents.contains(graph_id)).then(|| Diagnostic::error(field.then("graph_id"), message()))
    }

    /// Checks the fields that only references to other agents have.
    fn check_reference_fields(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let given = [
            ("url", self.url.is_some()),
            ("headers", !self.headers.is_empty()),
            ("async", self.in_background.is_some()),
        ];
        errors_of_given(
            field,
            given.into_iter().chain(self.background_fields()),
            "goes with `graph_id` only: it is about an agent defined elsewhere",
        )
    }

    /// Returns the given fields that describe the agent itself: all but [`FIELDS_OF_REFERENCES`].
    pub(super) fn own_fields(&self) -> Vec<String> {
        given_fields_but(self, &FIELDS_OF_REFERENCES)
    }

    /// Reports fields that belong to the definition of the other agent.
    fn check_own_fields(&self, field: &FieldPath, graph_id: &str) -> Vec<Diagnostic> {
        let more = [
            ("runnable", self.runnable.is_some()),
            ("mode", self.mode != SubagentMode::default()),
            ("initial_messages", !self.initial_messages.is_empty()),
        ];
        let own_fields = self.own_fields();
        let own_fields = own_fields.iter().map(|name| (name.as_str(), true));
        let mut findings = errors_of_given(
            field,
            own_fields.chain(more),
            "goes without `graph_id` only: that agent is defined elsewhere",
        );
        if graph_id.trim().is_empty() {
            findings.push(Diagnostic::error(
                field.then("graph_id"),
                "must not be blank: it names an agent",
            ));
        }
        findings
    }

    /// Returns the fields that only background subagents have, and whether they are given.
    fn background_fields(&self) -> [(&'static str, bool); 3] {
        [
            ("webhook", self.webhook.is_some()),
            ("update_strategy", self.update_strategy.is_some()),
            ("notify_parent", self.notify_parent.is_some()),
        ]
    }

    /// Checks that a subagent that is not in the background has no fields of those that are.
    fn check_background_fields(&self, field: &FieldPath) -> Vec<Diagnostic> {
        errors_of_given(
            field,
            self.background_fields(),
            "is for subagents in the background, and `async = false` makes this one synchronous",
        )
    }
}

/// Reports an address to which no report can be sent.
fn webhook_problem(address: &str) -> Option<String> {
    let masked = || is_masked(address).then(|| MASKED_ADDRESS.to_owned());
    address_problem(address).or_else(masked)
}

/// Checks the address of the server that has an agent.
pub(super) fn check_url(field: &FieldPath, url: &str) -> Option<Diagnostic> {
    let problem = address_problem(url).or_else(|| secret_problem(url))?;
    Some(Diagnostic::error(field.then("url"), problem))
}

/// Reports the parts that an address must not have, since clients can read addresses.
fn secret_problem(url: &str) -> Option<String> {
    let url = url::Url::parse(url).ok()?;
    let has_secret = !url.username().is_empty() || url.password().is_some() || url.query().is_some();
    let problem = "must hold neither a user nor a query: everybody can read it. Secrets belong in `headers`";
    has_secret.then(|| problem.to_owned())
}

/// Returns the names of the fields of a definition that are given, but for these.
pub(super) fn given_fields_but<T: Serialize + Default>(definition: &T, but: &[&str]) -> Vec<String> {
    let written = |definition: &T| match serde_json::to_value(definition) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => Map::new(),
    };
    let left_out = written(&T::default());
    let given = written(definition).into_iter();
    given
        .filter(|(name, value)| left_out.get(name) != Some(value) && !but.contains(&name.as_str()))
        .map(|(name, _)| name)
        .collect()
}

impl AgentDefinition {
    /// Reports subagents that are unknown agents of this server.
    pub fn unknown_agents(&self, agents: &BTreeSet<String>) -> Vec<Diagnostic> {
        self.subagents_with_fields()
            .filter_map(|(field, subagent)| subagent.unknown_agent(&field, agents))
            .collect()
    }

    /// Reports a background subagent with the name of the general-purpose subagent: the model would see two of that
    /// name.
    pub(super) fn check_background_names(&self) -> Vec<Diagnostic> {
        let general = &self.general_purpose_subagent;
        let taken = general.name.as_deref().unwrap_or(GENERAL_PURPOSE);
        let is_twin = |subagent: &SubagentDefinition| subagent.is_background() && subagent.name == taken;
        let twins = self
            .subagents_with_fields()
            .filter(|(_, subagent)| general.enabled && is_twin(subagent));
        let message = format!(
            "`{taken}` is the name of the general-purpose subagent; choose another, or switch that one off: \
             `general_purpose_subagent.enabled = false`"
        );
        twins
            .map(|(field, _)| Diagnostic::error(field.then("name"), message.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(text: Value) -> Vec<String> {
        let subagent: SubagentDefinition = serde_json::from_value(text).expect("a subagent");
        let agents = BTreeSet::from(["writer".to_owned()]);
        let findings = subagent.check_location(&FieldPath::default(), &agents);
        findings.into_iter().map(|finding| finding.field.to_string()).collect()
    }

    #[test]
    fn what_is_about_agents_elsewhere_goes_with_them_only() {
        use serde_json::json;
        let inside = json!({"url": "http://a.b", "headers": {"x": "y"}, "async": true, "webhook": "http://a.b",
            "update_strategy": "enqueue", "notify_parent": false});
        assert_eq!(
            reported(inside),
            ["url", "headers", "async", "webhook", "update_strategy", "notify_parent"]
        );
        let made = json!({"graph_id": "writer", "model": "a:b", "tools": [], "system_prompt": "x", "todos": true});
        assert_eq!(reported(made), ["model", "tools", "system_prompt", "todos"]);
        let delegate = json!({"graph_id": "writer", "async": false, "webhook": "http://a.b", "notify_parent": true});
        assert_eq!(reported(delegate), ["webhook", "notify_parent"]);
        assert_eq!(
            reported(json!({"graph_id": "writer", "headers": {"x": "y"}})),
            ["headers"]
        );
        assert_eq!(
            reported(json!({"graph_id": "any", "url": "ftp://x", "webhook": "nowhere"})),
            ["url", "webhook"]
        );
        for url in ["https://me:hush@a.b", "https://me@a.b", "https://a.b/?key=hush"] {
            assert_eq!(reported(json!({"graph_id": "any", "url": url})), ["url"], "{url}");
        }
        assert_eq!(
            reported(json!({"graph_id": "any", "url": "https://a.b/below/"})),
            [""; 0]
        );
        assert_eq!(reported(json!({"graph_id": "writre"})), ["graph_id"]);
        assert_eq!(
            reported(json!({"graph_id": "writer", "update_strategy": "enqueue"})),
            [""; 0]
        );
    }
}
