//! A database that is slow, locked, full or gone, and a second server on the same file.
