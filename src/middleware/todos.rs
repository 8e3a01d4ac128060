//! Policy.
