//! From a wish to a running loop.
