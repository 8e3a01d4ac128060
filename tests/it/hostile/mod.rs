//! Hostile input, one file for each way in. Every test ends with a server that works.
//! The program `tests/hostile_requests` has everything at once, under a memory limit.

mod approvals;
mod bodies;
#[cfg(target_os = "linux")]
mod commands;
mod databases;
mod definitions;
mod files;
mod fuzz_inputs;
mod json;
mod leases;
mod logs;
mod models;
mod pages;
mod peers;
mod quotas;
mod rows;
mod sandboxes;
mod schemas;
mod searches;
mod strategies;
mod streams;
mod tools;
mod workspaces;
