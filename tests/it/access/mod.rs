//! Access: who is it, and what may they do.

mod authentication;
mod hook;
mod issuer;
mod jwt;
mod keys;
mod tickets;
