//! Other servers that speak the same API, and the agents on them.
//!
//! [`Peer`] is the client for one server. [`RemoteAgent`] is an agent on another server as a local
//! [program](crate::tool::Runnable), so that it has a run, a history, interrupts, limits and an end like every
//! agent. [`RemoteThread`] is a thread on another server that executes a task of this one. [`crate::agent`]
//! assembles and runs such agents.

pub mod client;
mod question;
pub mod remote_agent;
mod remote_thread;
pub mod responses;

pub use client::{Peer, PeerAnswerLimits, PeerError, PeerPolicy, Peers, RemoteRunRequest};
pub use question::{is_asked, resume, to_question};
pub use remote_agent::RemoteAgent;
pub use remote_thread::{RemoteThread, StartFailed, asker};
