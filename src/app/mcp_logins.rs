//! The logins to MCP servers in the database, as the connections use them.

use std::sync::Arc;

use async_trait::async_trait;

use crate::db::{Db, DbError, RowAccess, mcp_logins};
use crate::domain::id::LoginVersion;
use crate::domain::mcp_login::{LoginKey, McpLogin};
use crate::domain::oauth_scopes::OAuthScopes;
use crate::domain::time::{Clock, Timestamp};
use crate::tool::mcp::{LoginStore, LoginStoreError};

/// The database with the logins to MCP servers, and the clock by which their tokens expire.
pub(super) struct ServerLogins {
    /// The logins; none if they cannot be read.
    pub(super) store: Option<Arc<dyn LoginStore>>,
    pub(super) clock: Arc<dyn Clock>,
}

impl ServerLogins {
    /// Returns the logins in the database.
    pub(super) fn stored(db: &Db, clock: &Arc<dyn Clock>) -> Self {
        Self {
            store: Some(Arc::new(StoredLogins(db.clone()))),
            clock: Arc::clone(clock),
        }
    }
}

/// The logins in the database. Connections are not those of one tenant, so they are read and written for the server itself.
struct StoredLogins(Db);

fn failed(error: DbError) -> LoginStoreError {
    LoginStoreError(error.to_string())
}

#[async_trait]
impl LoginStore for StoredLogins {
    async fn find(&self, key: &LoginKey) -> Result<Option<McpLogin>, LoginStoreError> {
        let key = key.clone();
        let read = self
            .0
            .read(move |tx| Box::pin(async move { mcp_logins::find(tx, &key).await }));
        RowAccess::Server.scope(read).await.map_err(failed)
    }

    async fn claim_refresh(&self, login: &McpLogin, now: Timestamp, until: Timestamp) -> Result<bool, LoginStoreError> {
        let login = login.clone();
        let write = self
            .0
            .write(move |tx| Box::pin(async move { mcp_logins::claim_refresh(tx, &login, now, until).await }));
        RowAccess::Server.scope(write).await.map_err(failed)
    }

    async fn replace(&self, login: &McpLogin, before: LoginVersion) -> Result<bool, LoginStoreError> {
        let login = login.clone();
        let write = self
            .0
            .write(move |tx| Box::pin(async move { mcp_logins::replace(tx, &login, before).await }));
        RowAccess::Server.scope(write).await.map_err(failed)
    }

    async fn release_refresh(&self, login: &McpLogin) -> Result<(), LoginStoreError> {
        let login = login.clone();
        let write = self
            .0
            .write(move |tx| Box::pin(async move { mcp_logins::release_refresh(tx, &login).await }));
        RowAccess::Server.scope(write).await.map_err(failed)
    }

    async fn add_missing_scopes(&self, login: &McpLogin, missing: &OAuthScopes) -> Result<(), LoginStoreError> {
        let login = login.clone();
        let missing = missing.clone();
        let write = self
            .0
            .write(move |tx| Box::pin(async move { mcp_logins::add_missing_scopes(tx, &login, &missing).await }));
        RowAccess::Server.scope(write).await.map_err(failed)
    }
}
