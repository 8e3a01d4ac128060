//! Access: who is it, and what may they do.

mod audit;
mod matrix;
