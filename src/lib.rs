//! adjutant
pub mod agent;
pub mod app;
pub mod config;
pub mod db;
pub mod domain;
pub mod events;
pub mod http;
pub mod middleware;
pub mod model;
pub mod runtime;
pub mod shutdown;
pub mod tool;
