//! Other servers that speak the same wire, and agents that work there.
//!
//! [`Peer`] is a client of one of them. [`Delegate`] is an agent there that stands in for a language model here: a
//! subagent that lives elsewhere is the same loop as every other, which asks that agent where others ask a model. So it
//! has a run, a history, questions, limits and an end like all of them, and nothing else knows where the work is done.
//! A [`Workplace`] is a thread there on which work is done
//! for which nobody here waits. Neighbours: [`crate::agent`] assembles such agents, [`crate::model`] says what it takes to stand in for a model.

pub mod address;
pub mod answers;
pub mod client;
pub mod delegate;
mod question;
mod workplace;

pub use address::AddressRules;
pub use client::{Peer, PeerAnswerLimits, PeerError, Peers, Reach, RunOrder};
pub use delegate::Delegate;
pub use question::{is_asked, passed_on, resume};
pub use workplace::{NotBegun, Workplace};
