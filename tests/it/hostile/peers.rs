//! Remote agents that say too much, hang, or are told what is secret.
