//! Bodies of requests: too large, too slow, too many at once; and connections that do nothing.
