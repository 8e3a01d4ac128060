//! What clients of several protocols need to talk to other servers.

pub mod sse;
