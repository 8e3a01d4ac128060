//! The tests of the whole, in one binary: a folder for each subject, a file for each promise.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, reads the environment, and starts what it needs"
)]

mod access;
mod agents;
mod api;
mod compat;
mod durability;
mod hostile;
mod meta;
mod remote;
mod streams;
mod support;
mod telemetry;
mod terminal;
