//! adjutant
pub mod db;
pub mod domain;
pub mod middleware;
pub mod model;
pub mod tool;
