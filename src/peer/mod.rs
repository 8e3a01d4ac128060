//! Other servers that speak the same wire, and agents that work there.
//!
//! [`Peer`] is a client of one of them. [`RemoteAgent`] is an agent there: a [program](crate::tool::Runnable) here, so that
//! it has a run, a history, questions, limits and an end like every subagent. A [`RemoteThread`] is a thread there on which
//! work from here is done. Neighbours: [`crate::agent`] assembles and runs such agents.

pub mod address;
pub mod client;
mod question;
pub mod remote_agent;
mod remote_thread;
pub mod responses;

pub use address::AddressRules;
pub use client::{Peer, PeerAnswerLimits, PeerError, PeerPolicy, Peers, RemoteRunRequest};
pub use question::{is_asked, resume, to_question};
pub use remote_agent::RemoteAgent;
pub use remote_thread::{RemoteThread, StartFailed};
