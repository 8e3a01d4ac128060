//! The stream of a thread in the second protocol: what happens on it, run after run, and the commands of its clients.
//!
//! | File | Serves |
//! |---|---|
//! | `sse` | `POST /threads/{id}/stream/events` |
//! | `socket` | `GET /threads/{id}/stream/events`, a WebSocket that also takes commands |
//! | `commands` | `POST /threads/{id}/commands` |

pub(super) mod commands;
pub(super) mod socket;
pub(super) mod sse;
