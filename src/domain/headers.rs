//! Headers of requests to other servers.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Headers of requests to another server, by name. Their values may be secrets: they are never printed, and clients
/// receive [`Headers::MASK`] instead.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(pub BTreeMap<String, String>);

impl Headers {
    /// The text shown instead of a value.
    pub const MASK: &str = "<not shown>";

    /// Returns whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
