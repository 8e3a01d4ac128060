//! The log and who is listening.
