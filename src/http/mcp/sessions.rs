//! The sessions of MCP clients that speak a protocol version with sessions. They are in the memory of this process.
//!
//! A session belongs to the client that opened it: for all others it does not exist. A client that opens too many loses
//! the one that it has not used for the longest time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{SessionId, SessionManager};
use tokio::time::Instant;

use crate::http::client::ClientId;
use crate::http::error::ApiError;

/// The header with the id of a session.
const SESSION_ID: &str = "mcp-session-id";

/// The longest time for which a session is kept without any message. A long call without notifications is such a time.
const IDLE_TIMEOUT: Duration = Duration::from_hours(4);

/// The limit of sessions per client.
const MAX_PER_CLIENT: usize = 256;

/// The limit of all sessions.
const MAX_SESSIONS: usize = 1024;

/// Creates the part of `rmcp` that has the sessions.
pub(super) fn session_manager() -> LocalSessionManager {
    let mut manager = LocalSessionManager::default();
    manager.session_config.keep_alive = Some(IDLE_TIMEOUT);
    manager
}

/// The clients of the sessions.
pub(super) struct McpSessions {
    manager: Arc<LocalSessionManager>,
    known: Mutex<HashMap<SessionId, ClientSession>>,
    /// Held while a session is opened, so that the limits hold.
    opening: Arc<tokio::sync::Mutex<()>>,
}

/// A session of a client.
struct ClientSession {
    client: ClientId,
    last_used: Instant,
    /// The number of requests whose responses are not complete.
    open_requests: usize,
}

/// A request of a session, until its response is complete.
pub(super) struct SessionRequest {
    sessions: Arc<McpSessions>,
    id: SessionId,
}

impl Drop for SessionRequest {
    fn drop(&mut self) {
        if let Some(session) = self.sessions.lock().get_mut(&self.id) {
            session.open_requests = session.open_requests.saturating_sub(1);
            session.last_used = Instant::now();
        }
    }
}

impl McpSessions {
    /// Creates the table of the sessions in `manager`.
    pub(super) fn new(manager: Arc<LocalSessionManager>) -> Self {
        Self {
            manager,
            known: Mutex::default(),
            opening: Arc::default(),
        }
    }

    /// Counts a request of a session; `None` if the request names none.
    ///
    /// # Errors
    /// 404 if the client has no such session.
    pub(super) fn begin_request(
        self: &Arc<Self>,
        headers: &HeaderMap,
        client: ClientId,
    ) -> Result<Option<SessionRequest>, ApiError> {
        let Some(named) = headers.get(SESSION_ID) else {
            return Ok(None);
        };
        let id: SessionId = named.to_str().map_err(|_| ApiError::no_mcp_session())?.into();
        let mut known = self.lock();
        let session = known.get_mut(&id).filter(|session| session.client == client);
        session.ok_or_else(ApiError::no_mcp_session)?.open_requests += 1;
        drop(known);
        let sessions = Arc::clone(self);
        Ok(Some(SessionRequest { sessions, id }))
    }

    /// Makes room for one more session of a client. The next one is opened after the returned guard is dropped.
    ///
    /// # Errors
    /// 429 if all sessions of the client are in use, or all that the server may have.
    pub(super) async fn make_room(&self, client: ClientId) -> Result<tokio::sync::OwnedMutexGuard<()>, ApiError> {
        let guard = Arc::clone(&self.opening).lock_owned().await;
        let alive: HashSet<SessionId> = self.manager.sessions.read().await.keys().cloned().collect();
        let oldest = {
            let mut known = self.lock();
            known.retain(|id, _| alive.contains(id));
            let is_own = |session: &ClientSession| session.client == client;
            let own = known.values().filter(|session| is_own(session)).count();
            let is_full = known.len() >= MAX_SESSIONS;
            if own < MAX_PER_CLIENT && !is_full {
                return Ok(guard);
            }
            let unused = known
                .iter()
                .filter(|(_, session)| session.open_requests == 0 && (is_own(session) || own < MAX_PER_CLIENT));
            let oldest = unused
                .min_by_key(|(_, session)| session.last_used)
                .map(|(id, _)| id.clone());
            if let Some(id) = &oldest {
                known.remove(id);
            }
            oldest
        };
        let oldest = oldest.ok_or_else(|| ApiError::too_many_mcp_sessions(MAX_PER_CLIENT))?;
        // It fails only if the session has ended meanwhile.
        drop(self.manager.close_session(&oldest).await);
        Ok(guard)
    }

    /// Adds the session that the headers of a response name.
    pub(super) fn add(&self, headers: &HeaderMap, client: ClientId) {
        let Some(id) = headers.get(SESSION_ID).and_then(|id| id.to_str().ok()) else {
            return;
        };
        let session = ClientSession {
            client,
            last_used: Instant::now(),
            open_requests: 0,
        };
        self.lock().insert(id.into(), session);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, ClientSession>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
