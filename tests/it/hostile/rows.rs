//! Rows of the database that cannot be read: they are stepped over, and everything else goes on.
