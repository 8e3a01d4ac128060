//! A log that cannot be written, and essential tasks that end.
