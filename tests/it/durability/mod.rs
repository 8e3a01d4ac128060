//! A server may die at any instant: processes are killed, and nothing is lost or done twice.

pub(crate) mod background_tasks;
mod blobs;
mod compaction;
mod crash;
mod failover;
mod first_steps;
mod load_balancer;
mod pooled_postgres;
mod proof;
mod random;
mod remote_agents;
mod remote_tasks;
mod rented_postgres;
mod roles;
mod soak;
mod takeover;
mod upgrade;
