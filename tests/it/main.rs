//! The tests of the whole, in one binary: one module for each promise.

mod layers;
