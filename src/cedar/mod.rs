//! Access policies in the language Cedar: reading, validation, and rulings about requests. Pure: nothing here does I/O.
//!
//! `nesting.rs` bounds the nesting of a text. Then Cedar parses the policies and validates them against the schema in
//! `schema.rs`. `condition.rs` splits their conditions into what is asked about the caller, which Cedar evaluates for each
//! request, and what is asked about the resource, which becomes a condition on rows. `policies.rs` makes rulings of them.
//!
//! All of it belongs to the cargo feature `policies`, since Cedar takes long to build. What is here is in every build.

use std::sync::Arc;

use crate::domain::ruling::AccessPolicies;

#[cfg(feature = "policies")]
mod condition;
#[cfg(feature = "policies")]
mod nesting;
#[cfg(feature = "policies")]
mod policies;
#[cfg(feature = "policies")]
mod schema;

/// True if this build has access policies.
pub const IS_BUILT_IN: bool = cfg!(feature = "policies");
/// The maximum size of a file of policies, in bytes.
pub const MAX_FILE_BYTES: usize = 256 * 1024;

/// A file of policies.
#[derive(Debug, Clone)]
pub struct PolicyFile {
    /// The name, for messages.
    pub name: String,
    /// The text.
    pub text: String,
}

/// A mistake in a file of policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyMistake {
    /// The name of the file.
    pub file: String,
    /// The place in its text, in bytes, if it is known.
    pub offset: Option<usize>,
    /// The mistake in words.
    pub message: String,
    /// True if the policies can be used nevertheless.
    pub is_warning: bool,
}

impl PolicyMistake {
    /// Creates a mistake because of which the policies cannot be used.
    pub fn error(file: &str, offset: Option<usize>, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            offset,
            message: message.into(),
            is_warning: false,
        }
    }
}

/// Policies that were read.
#[derive(Debug)]
pub struct LoadedPolicies {
    /// The policies.
    pub policies: Arc<dyn AccessPolicies>,
    /// Warnings about them.
    pub warnings: Vec<PolicyMistake>,
}

/// Reads and validates policies.
///
/// # Errors
/// Returns all mistakes.
#[cfg(feature = "policies")]
pub fn read(files: &[PolicyFile]) -> Result<LoadedPolicies, Vec<PolicyMistake>> {
    /// Cedar's functions call themselves for each level of an expression. This is several times what they need for an
    /// expression of [`nesting::MAX_NESTING`] levels in a build without optimisation. Only what is used takes memory.
    const STACK_BYTES: usize = 128 * 1024 * 1024;
    let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
    let read = std::thread::scope(|scope| {
        let reader = builder.spawn_scoped(scope, || policies::CedarPolicies::read(files));
        reader.map(std::thread::ScopedJoinHandle::join)
    });
    let unread = |reason: &str| Err(vec![PolicyMistake::error("the access policies", None, reason)]);
    match read {
        Ok(Ok(read)) => read.map(|read| LoadedPolicies {
            policies: Arc::new(read.policies),
            warnings: read.warnings,
        }),
        Ok(Err(_)) => unread("cannot be read: the parser panicked"),
        Err(error) => unread(&format!("cannot be read: {error}")),
    }
}

/// Refuses policies, which this build does not have.
///
/// # Errors
/// Returns always a mistake.
#[cfg(not(feature = "policies"))]
pub fn read(files: &[PolicyFile]) -> Result<LoadedPolicies, Vec<PolicyMistake>> {
    let refusal = |file: &PolicyFile| {
        PolicyMistake::error(
            &file.name,
            None,
            "this program was built without the cargo feature `policies`",
        )
    };
    Err(files.iter().map(refusal).collect())
}

#[cfg(all(test, feature = "policies"))]
mod tests;
