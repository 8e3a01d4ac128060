//! Agent definitions that clients bring over HTTP.
