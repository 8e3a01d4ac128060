//! Has the program built again when a file comes into a folder that it contains. Of these folders, which macros embed, cargo
//! knows by itself only the files that were there.

/// The folders.
const EMBEDDED: [&str; 2] = ["console/dist", "migrations"];

fn main() {
    for folder in EMBEDDED {
        println!("cargo::rerun-if-changed={folder}");
    }
}
