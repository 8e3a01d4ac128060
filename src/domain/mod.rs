//! The nouns.
pub mod message;
