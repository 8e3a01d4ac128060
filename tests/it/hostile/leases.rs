//! Clocks that differ, restarts without end, and results that cannot be stored at once.
