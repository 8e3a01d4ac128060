//! Access: who is it, and what may they do.

mod matrix;
