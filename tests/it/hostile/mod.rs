//! Hostile input, one file for each door it comes through. Every scene ends with a server that works.
//! Everything at once, under a limit of memory, is the program `tests/hostile_requests`.

mod approvals;
mod bodies;
mod databases;
mod definitions;
mod files;
mod json;
mod leases;
mod logs;
mod models;
mod pages;
mod peers;
mod quotas;
mod rows;
mod schemas;
mod searches;
mod streams;
mod tools;
