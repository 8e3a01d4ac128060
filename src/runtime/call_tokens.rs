//! The tokens of tool calls, in the database: issued for a call, found for a request, ended with the call.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ring::rand::{SecureRandom, SystemRandom};

use super::resource_ref::ResourceRef;
use super::shared::Core;
use crate::db::{self, DbResult, RowAccess};
use crate::domain::api_key::SecretDigest;
use crate::domain::call_token::CallBinding;
use crate::domain::id::ThreadId;
use crate::domain::machine::Failure;
use crate::domain::secret::{NewSecret, SECRET_BYTES, digest_of_secret};
use crate::tool::call_tokens::{CallTokens, IssuedCallToken};

/// The first part of the text of every token of a call.
const PREFIX: &str = "adjc_";

/// The tokens in the database. Cheap to clone.
#[derive(Clone)]
pub struct StoredCallTokens {
    core: Arc<Core>,
    random: Arc<SystemRandom>,
}

impl StoredCallTokens {
    pub(super) fn new(core: Arc<Core>) -> Self {
        let random = Arc::new(SystemRandom::new());
        Self { core, random }
    }

    /// Returns the call to which the token with this text is bound; none if there is no such token, or if the call is over.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn find(&self, text: &str) -> DbResult<Option<CallBinding>> {
        let Some(digest) = digest_of_secret(PREFIX, text) else {
            return Ok(None);
        };
        let now = self.core.clock.now();
        let read = self
            .core
            .db
            .read(move |tx| Box::pin(async move { db::call_tokens::find(tx, &digest, now).await }));
        // The tenant is known when the token is found.
        RowAccess::Server.scope(read).await
    }

    async fn delete(core: &Core, token: SecretDigest) {
        let write = core
            .db
            .write(move |tx| Box::pin(async move { db::call_tokens::delete(tx, &token).await }));
        if let Err(error) = write.await {
            tracing::warn!(%error, "the token of a call could not be ended; it expires");
        }
    }
}

#[async_trait]
impl CallTokens for StoredCallTokens {
    async fn issue(&self, call: CallBinding, lifetime: Duration) -> Result<IssuedCallToken, Failure> {
        let thread = call.thread;
        let mut bytes = [0; SECRET_BYTES];
        let filled = self.random.fill(&mut bytes);
        filled.map_err(|_| not_stored(thread, &"the operating system gives no random numbers"))?;
        let secret = NewSecret::of_random(PREFIX, bytes);
        let digest = secret.digest;
        let now = self.core.clock.now();
        let expires_at = now.plus(lifetime);
        let write = self.core.db.write(move |tx| {
            let call = call.clone();
            Box::pin(async move { db::call_tokens::insert(tx, &digest, &call, expires_at, now).await })
        });
        write.await.map_err(|error| not_stored(thread, &error))?;
        Ok(IssuedCallToken {
            text: secret.text,
            digest,
            expires_at,
        })
    }

    async fn end(&self, token: SecretDigest) {
        Self::delete(&self.core, token).await;
    }

    fn end_soon(&self, token: SecretDigest) {
        let core = Arc::clone(&self.core);
        // Nobody waits for it.
        drop(
            self.core
                .spawn("token of a call", async move { Self::delete(&core, token).await }),
        );
    }
}

fn not_stored(thread: ThreadId, error: &dyn std::fmt::Display) -> Failure {
    tracing::error!(resource = %ResourceRef::Thread(thread), %error, "the token of a call cannot be stored");
    Failure::new("StorageError", "the token of the call cannot be stored")
}
