//! adjutant
pub mod domain;
pub mod model;
