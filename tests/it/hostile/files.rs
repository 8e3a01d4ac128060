//! Files and states that grow without end.
