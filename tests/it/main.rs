//! The tests of the whole, in one binary: one module for each promise.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, reads the environment, and starts what it needs"
)]

mod interrupts;
mod layers;
mod runs;
mod stateless;
mod streams;
mod support;
mod threads;
