//! adjutant
pub mod config;
pub mod db;
pub mod domain;
pub mod middleware;
pub mod model;
pub mod shutdown;
pub mod tool;
