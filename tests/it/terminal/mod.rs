//! The commands that talk to a server, in pipes and in terminals.

mod chat;
mod conversations;
mod resources;
