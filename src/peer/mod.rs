//! Other servers that speak the same wire, and agents that work there.
//!
//! [`Peer`] is a client of one of them. [`RemoteAgent`] is an agent there: a [program](crate::tool::Runnable) here, so that
//! it has a run, a history, questions, limits and an end like every subagent. A [`RemoteThread`] is a thread there on which
//! work from here is done. Neighbours: [`crate::agent`] assembles and runs such agents.

pub mod answers;
pub mod client;
pub mod delegate;
mod question;
mod workplace;

pub use client::{Peer, PeerAnswerLimits, PeerError, PeerPolicy, Peers, RunOrder};
pub use delegate::RemoteAgent;
pub use question::{is_asked, passed_on, resume};
pub use workplace::{NotBegun, RemoteThread};
