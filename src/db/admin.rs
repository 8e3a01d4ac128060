//! The work of operators on a database, most of it without a server: checks, migration, rewriting of files, and other keys.

pub mod inspection;
pub mod postgres_checks;
mod rekey;
pub mod vacuum;

pub use rekey::{RekeyProgress, RekeyTarget};
