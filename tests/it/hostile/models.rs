//! Models that never end, never begin, or say too much.
