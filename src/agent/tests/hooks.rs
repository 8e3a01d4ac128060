//! Policies around the loop: in which order, and what passes through them.
