//! The access rule of every route. A test compares them with the API document, so that no route is without a rule.

use crate::domain::access::Action;

/// The resource of a route that its rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Subject {
    /// No single resource: searches and creations. What they find or create is limited by the scope of the caller. What
    /// the body names is checked where it is read, and that of a run at its admission.
    Collection,
    /// The thread in the path.
    Thread,
    /// The assistant in the path, or, if the path names a graph, its default assistant, which all callers may read.
    Assistant,
    /// The cron in the path.
    Cron,
    /// The webhook delivery in the path.
    Delivery,
}

/// The access rule of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Rule {
    /// Everybody may use it, without a credential.
    Public,
    /// Tools may use it during a call, with the token of the call. The handler decides by what the token says.
    OfCall,
    /// Callers may use it who may do this to the resource.
    Allow(Action, Subject),
}

/// Returns the rule of a route; `path` is its pattern.
#[expect(
    clippy::too_many_lines,
    clippy::match_same_arms,
    reason = "one line for each resource"
)]
pub(in crate::http) fn rule_of(method: &str, path: &str) -> Option<Rule> {
    use Action::{
        AgentsDelete, AgentsPut, AgentsRead, AssistantsCreate, AssistantsDelete, AssistantsRead, AssistantsSearch,
        AssistantsUpdate, AuditRead, CronsCreate, CronsDelete, CronsRead, CronsSearch, CronsUpdate, DeliveriesRead,
        DeliveriesRedeliver, DeliveriesSearch, InterruptsRead, InterruptsResolve, InterruptsSearch, KeysRead,
        KeysWrite, MetricsRead, ServerRead, StoreDelete, StoreGet, StoreListNamespaces, StorePut, StoreSearch,
        ThreadsCreate, ThreadsCreateRun, ThreadsDelete, ThreadsRead, ThreadsSearch, ThreadsUpdate, TicketsCreate,
        UsersDelete, UsersExport,
    };
    use Rule::{Allow, OfCall, Public};
    use Subject::{Assistant, Collection, Cron, Delivery, Thread};

    let method = if method == "HEAD" { "GET" } else { method };
    let rule = match (method, path) {
        ("GET", "/" | "/ok" | "/ready") => Public,
        ("GET", "/info" | "/auth/me") => Allow(ServerRead, Collection),
        // Each message is checked for what it does: a call as the run that it starts.
        ("GET" | "POST" | "DELETE", "/mcp") => Allow(ServerRead, Collection),
        ("GET", "/audit") => Allow(AuditRead, Collection),
        ("GET", "/metrics") => Allow(MetricsRead, Collection),
        ("POST", "/auth/tickets") => Allow(TicketsCreate, Collection),
        ("GET", "/auth/keys" | "/auth/keys/{key_id}") => Allow(KeysRead, Collection),
        ("POST", "/auth/keys" | "/auth/keys/{key_id}/rotate") => Allow(KeysWrite, Collection),
        ("DELETE", "/auth/keys/{key_id}") => Allow(KeysWrite, Collection),

        ("GET", "/users/{user_id}/export") => Allow(UsersExport, Collection),
        ("DELETE", "/users/{user_id}") => Allow(UsersDelete, Collection),

        ("POST", "/assistants") => Allow(AssistantsCreate, Collection),
        ("POST", "/assistants/search" | "/assistants/count") => Allow(AssistantsSearch, Collection),
        ("PATCH", "/assistants/{assistant_id}") => Allow(AssistantsUpdate, Assistant),
        ("POST", "/assistants/{assistant_id}/latest") => Allow(AssistantsUpdate, Assistant),
        ("DELETE", "/assistants/{assistant_id}") => Allow(AssistantsDelete, Assistant),
        ("POST", "/assistants/{assistant_id}/versions") => Allow(AssistantsRead, Assistant),
        (
            "GET",
            "/assistants/{assistant_id}"
            | "/assistants/{assistant_id}/graph"
            | "/assistants/{assistant_id}/schemas"
            | "/assistants/{assistant_id}/subgraphs"
            | "/assistants/{assistant_id}/subgraphs/{namespace}",
        ) => Allow(AssistantsRead, Assistant),

        ("POST", "/agents/search" | "/agents/validate") => Allow(AgentsRead, Collection),
        ("GET", "/agents/{graph_id}" | "/agents/{graph_id}/versions") => Allow(AgentsRead, Collection),
        ("PUT", "/agents/{graph_id}") => Allow(AgentsPut, Collection),
        ("DELETE", "/agents/{graph_id}") => Allow(AgentsDelete, Collection),

        ("POST", "/threads") => Allow(ThreadsCreate, Collection),
        ("POST", "/threads/search" | "/threads/count") => Allow(ThreadsSearch, Collection),
        ("POST", "/threads/prune") => Allow(ThreadsDelete, Collection),
        ("GET", "/threads/{thread_id}") => Allow(ThreadsRead, Thread),
        ("PATCH", "/threads/{thread_id}") => Allow(ThreadsUpdate, Thread),
        ("DELETE", "/threads/{thread_id}") => Allow(ThreadsDelete, Thread),
        ("POST", "/threads/{thread_id}/copy") => Allow(ThreadsRead, Thread),
        (
            "GET",
            "/threads/{thread_id}/storage"
            | "/threads/{thread_id}/stream"
            | "/threads/{thread_id}/state"
            | "/threads/{thread_id}/state/{checkpoint_id}"
            | "/threads/{thread_id}/history"
            | "/threads/{thread_id}/runs"
            | "/threads/{thread_id}/runs/{run_id}"
            | "/threads/{thread_id}/runs/{run_id}/join"
            | "/threads/{thread_id}/runs/{run_id}/stream"
            | "/threads/{thread_id}/runs/{run_id}/children"
            | "/threads/{thread_id}/runs/{run_id}/tree"
            | "/threads/{thread_id}/runs/{run_id}/state",
        ) => Allow(ThreadsRead, Thread),
        ("POST", "/threads/{thread_id}/state/checkpoint" | "/threads/{thread_id}/history") => {
            Allow(ThreadsRead, Thread)
        }
        // The stream may wait for a thread that does not exist yet, so each run is checked when it begins.
        ("GET" | "POST", "/threads/{thread_id}/stream/events") => Allow(ThreadsRead, Collection),
        ("POST", "/threads/{thread_id}/state" | "/threads/{thread_id}/compact") => Allow(ThreadsUpdate, Thread),
        ("POST", "/threads/{thread_id}/runs/{run_id}/cancel") => Allow(ThreadsUpdate, Thread),
        ("DELETE", "/threads/{thread_id}/runs/{run_id}") => Allow(ThreadsDelete, Thread),

        // The admission of the run checks the thread and the assistant: the thread may be created with the run.
        (
            "POST",
            "/threads/{thread_id}/runs" | "/threads/{thread_id}/runs/wait" | "/threads/{thread_id}/runs/stream",
        ) => Allow(ThreadsCreateRun, Collection),
        ("POST", "/runs" | "/runs/wait" | "/runs/stream" | "/runs/batch") => Allow(ThreadsCreateRun, Collection),
        ("POST", "/runs/cancel") => Allow(ThreadsUpdate, Collection),
        // Each command has a rule of its own.
        ("POST", "/threads/{thread_id}/commands") => Allow(ServerRead, Collection),

        ("POST", "/runs/crons") => Allow(CronsCreate, Collection),
        ("POST", "/threads/{thread_id}/runs/crons") => Allow(CronsCreate, Thread),
        ("POST", "/runs/crons/search" | "/runs/crons/count") => Allow(CronsSearch, Collection),
        ("GET", "/runs/crons/{cron_id}") => Allow(CronsRead, Cron),
        ("PATCH", "/runs/crons/{cron_id}") => Allow(CronsUpdate, Cron),
        ("DELETE", "/runs/crons/{cron_id}") => Allow(CronsDelete, Cron),

        ("GET", "/webhooks/deliveries") => Allow(DeliveriesSearch, Collection),
        ("GET", "/webhooks/deliveries/{delivery_id}") => Allow(DeliveriesRead, Delivery),
        ("POST", "/webhooks/deliveries/{delivery_id}/redeliver") => Allow(DeliveriesRedeliver, Delivery),

        ("GET", "/interrupts") => Allow(InterruptsSearch, Collection),
        ("GET", "/threads/{thread_id}/interrupts" | "/threads/{thread_id}/interrupts/{interrupt_id}") => {
            Allow(InterruptsRead, Thread)
        }
        ("POST", "/threads/{thread_id}/interrupts/{interrupt_id}/resolve") => Allow(InterruptsResolve, Thread),
        ("GET", "/threads/{thread_id}/approvals") => Allow(InterruptsRead, Thread),
        ("DELETE", "/threads/{thread_id}/approvals/{approval_id}") => Allow(InterruptsResolve, Thread),

        ("GET", "/store/items") => Allow(StoreGet, Collection),
        ("PUT", "/store/items") => Allow(StorePut, Collection),
        ("DELETE", "/store/items") => Allow(StoreDelete, Collection),
        ("POST", "/store/items/search") => Allow(StoreSearch, Collection),
        ("POST", "/store/namespaces") => Allow(StoreListNamespaces, Collection),

        ("GET", "/call/state" | "/call/files" | "/call/files/content" | "/call/store/items") => OfCall,
        ("POST", "/call/store/items/search") => OfCall,
        _ => return None,
    };
    Some(rule)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, Value};

    use super::*;
    use crate::http::access::UUIDS;
    use crate::http::openapi;

    #[test]
    fn every_route_of_the_document_has_a_rule() {
        let document = serde_json::to_value(openapi::document()).expect("the document");
        let paths = document["paths"].as_object().expect("paths");
        let mut checked = 0;
        for (path, item) in paths {
            for method in item.as_object().expect("an item").keys() {
                let rule = rule_of(&method.to_uppercase(), path);
                assert!(rule.is_some(), "{method} {path} has no access rule");
                checked += 1;
            }
        }
        assert!(checked > 70, "{checked} routes");
    }

    #[test]
    fn the_variables_that_are_uuids_are_those_of_the_document() {
        let document = serde_json::to_value(openapi::document()).expect("the document");
        let paths = document["paths"].as_object().expect("paths");
        let operations = paths.values().filter_map(Value::as_object).flat_map(Map::values);
        let parameters = operations
            .filter_map(|operation| operation["parameters"].as_array())
            .flatten();
        let is_uuid = |parameter: &&Value| parameter["in"] == "path" && parameter["schema"]["format"] == "uuid";
        let named: BTreeSet<&str> = parameters
            .filter(is_uuid)
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        assert_eq!(named, BTreeSet::from(UUIDS));
    }

    #[test]
    fn a_route_without_a_rule_is_refused() {
        assert_eq!(rule_of("POST", "/nothing"), None);
        assert_eq!(rule_of("TRACE", "/threads/{thread_id}"), None);
    }
}
