//! The actions of requests on resources.

use std::fmt;

/// Defines [`Action`] with one row an action. A macro, since an enum does not list its variants.
macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// An action on a kind of resource. The words are those of LangGraph's authorisation, where it has one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Action {
            $($(#[$doc])* $name,)*
        }

        impl Action {
            /// All actions.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the word of the action: the resource and the verb, as in `threads:read`.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// Returns the kind of resource, such as `threads`.
            pub fn resource(self) -> &'static str {
                match self {
                    $(Self::$name => const { parts_of($word).0 },)*
                }
            }

            /// Returns what is done to the resource, such as `read`.
            pub(super) fn verb(self) -> &'static str {
                match self {
                    $(Self::$name => const { parts_of($word).1 },)*
                }
            }
        }
    };
}

actions! {
    /// Create a thread, also as a copy.
    ThreadsCreate = "threads:create",
    /// Read a thread, its state, history, runs and streams.
    ThreadsRead = "threads:read",
    /// Change the metadata or the state of a thread, or cancel its runs.
    ThreadsUpdate = "threads:update",
    /// Delete or prune a thread, or delete one of its runs, also by a rollback.
    ThreadsDelete = "threads:delete",
    /// Find threads.
    ThreadsSearch = "threads:search",
    /// Start a run.
    ThreadsCreateRun = "threads:create_run",
    /// Read an interrupt.
    InterruptsRead = "interrupts:read",
    /// Find interrupts.
    InterruptsSearch = "interrupts:search",
    /// Answer an interrupt.
    InterruptsResolve = "interrupts:resolve",
    /// Create an assistant.
    AssistantsCreate = "assistants:create",
    /// Read an assistant, also to run it.
    AssistantsRead = "assistants:read",
    /// Change an assistant or choose its version.
    AssistantsUpdate = "assistants:update",
    /// Delete an assistant.
    AssistantsDelete = "assistants:delete",
    /// Find assistants.
    AssistantsSearch = "assistants:search",
    /// Read the definitions of agents, or validate one.
    AgentsRead = "agents:read",
    /// Define an agent.
    AgentsPut = "agents:put",
    /// Delete the definition of an agent.
    AgentsDelete = "agents:delete",
    /// Create a cron.
    CronsCreate = "crons:create",
    /// Read a cron.
    CronsRead = "crons:read",
    /// Change a cron.
    CronsUpdate = "crons:update",
    /// Delete a cron.
    CronsDelete = "crons:delete",
    /// Find crons.
    CronsSearch = "crons:search",
    /// Read a webhook delivery.
    DeliveriesRead = "deliveries:read",
    /// Find webhook deliveries.
    DeliveriesSearch = "deliveries:search",
    /// Send a webhook delivery again.
    DeliveriesRedeliver = "deliveries:redeliver",
    /// Write an item of the Store.
    StorePut = "store:put",
    /// Read an item of the Store.
    StoreGet = "store:get",
    /// Find items of the Store.
    StoreSearch = "store:search",
    /// Delete an item of the Store.
    StoreDelete = "store:delete",
    /// List namespaces of the Store.
    StoreListNamespaces = "store:list_namespaces",
    /// Read what the server is: its version, features and the caller's identity.
    ServerRead = "server:read",
    /// Read the metrics, which count for all tenants.
    MetricsRead = "metrics:read",
    /// Get a ticket with which a browser opens a stream.
    TicketsCreate = "tickets:create",
    /// Read API keys.
    KeysRead = "keys:read",
    /// Create, rotate or revoke an API key.
    KeysWrite = "keys:write",
    /// Read the audit.
    AuditRead = "audit:read",
    /// Export everything that belongs to a user.
    UsersExport = "users:export",
    /// Delete everything that belongs to a user.
    UsersDelete = "users:delete",
}

/// Returns the resource and the verb in the word of an action. Each request asks for them several times, so they are
/// computed when the program is built.
const fn parts_of(word: &'static str) -> (&'static str, &'static str) {
    let bytes = word.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b':' {
            return (word.split_at(at).0, word.split_at(at + 1).1);
        }
        at += 1;
    }
    (word, "")
}

impl Action {
    /// Returns whether the action changes nothing.
    pub fn is_read(self) -> bool {
        matches!(self.verb(), "read" | "search" | "get" | "list_namespaces")
    }

    /// Returns whether a permission covers the action: `threads:read`, `threads:*` or `*`.
    pub fn is_covered_by(self, permission: &str) -> bool {
        permission == "*" || permission == self.word() || permission.strip_suffix(":*") == Some(self.resource())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
