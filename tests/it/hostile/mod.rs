//! Hostile input, one file for each door it comes through. Every scene ends with a server that works.

mod approvals;
mod bodies;
mod databases;
mod definitions;
mod files;
mod json;
mod leases;
mod logs;
mod memory;
mod models;
mod pages;
mod peers;
mod quotas;
mod rows;
mod schemas;
mod searches;
mod streams;
mod tools;
