//! The limits on the definitions of clients.

/// The maximum size of the definition of a client, in bytes of JSON.
pub const LARGEST_DEFINITION: usize = 256 * 1024;
/// The maximum number of agents that the clients of all tenants may define together. A server keeps them in memory.
pub const MOST_AGENTS: i64 = 2000;
/// The maximum number of listed versions of a definition. Older versions stay only as long as a run needs them.
pub const VERSIONS_KEPT: i64 = 100;
