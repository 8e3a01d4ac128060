//! The v2 protocol: the stream of a thread's events over all its runs, and commands to the thread.
//!
//! | File | Serves |
//! |---|---|
//! | `sse` | `POST /threads/{id}/stream/events` |
//! | `socket` | `GET /threads/{id}/stream/events`, a WebSocket that also takes commands |
//! | `web_socket` | the messages of such a WebSocket |
//! | `commands` | `POST /threads/{id}/commands` |

pub(super) mod commands;
pub(super) mod socket;
pub(super) mod sse;
mod web_socket;

use super::Api;
use crate::db::DbResult;
use crate::domain::access::Action;
use crate::domain::id::ThreadId;
use crate::runtime::ResourceRef;

/// Returns whether the caller may read a thread. On another thread, or one that does not exist yet, a stream waits for a run
/// that the caller may read. Until then it says nothing about the thread, and takes no place of its readers.
async fn may_read(api: &Api, thread: ThreadId) -> DbResult<bool> {
    let allows = api
        .access
        .allows(&api.caller, Action::ThreadsRead, ResourceRef::Thread(thread));
    Box::pin(allows).await
}
