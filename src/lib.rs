//! adjutant
#![cfg_attr(
    test,
    allow(
        clippy::wildcard_enum_match_arm,
        clippy::disallowed_methods,
        reason = "a test names the one variant it is about, and ends with its tasks"
    )
)]

pub mod agent;
pub mod config;
pub mod db;
pub mod domain;
pub mod events;
pub mod middleware;
pub mod model;
pub mod runtime;
pub mod shutdown;
pub mod tool;
