//! JSON Schemas whose check would take all memory.
