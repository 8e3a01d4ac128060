//! The v2 protocol: the stream of a thread's events over all its runs, and commands to the thread.
//!
//! | File | Serves |
//! |---|---|
//! | `sse` | `POST /threads/{id}/stream/events` |
//! | `socket` | `GET /threads/{id}/stream/events`, a WebSocket that also takes commands |
//! | `commands` | `POST /threads/{id}/commands` |

pub(super) mod commands;
pub(super) mod socket;
pub(super) mod sse;
