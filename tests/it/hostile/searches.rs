//! Searches and histories that would take all memory or all time.
