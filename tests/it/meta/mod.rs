//! The source, the documents and the program itself.

mod documents;
mod first_start;
mod language;
mod layers;
mod recipes;
