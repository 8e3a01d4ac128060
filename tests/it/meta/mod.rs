//! The source, the documents and the program itself.

mod chart;
mod check_connect;
mod circles;
mod command_line;
mod dependencies;
mod documents;
mod first_start;
mod image;
mod language;
mod layers;
mod packages;
mod recipes;
mod simulation;
