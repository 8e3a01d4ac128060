//! Access: who is it, and what may they do.

mod approvers;
mod audit;
mod authentication;
mod costs;
pub(crate) mod encryption;
mod hook;
mod issuer;
mod jwt;
mod keys;
mod matrix;
#[cfg(feature = "policies")]
mod policies;
mod quotas;
mod sdk;
mod sharing;
mod tenant_agents;
mod tenants;
mod tickets;
mod users;
mod vacuum;
