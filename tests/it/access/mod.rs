//! Access: who is it, and what may they do.

mod approvers;
mod audit;
mod authentication;
mod costs;
mod hook;
mod issuer;
mod jwt;
mod keys;
mod matrix;
mod quotas;
mod sdk;
mod tickets;
