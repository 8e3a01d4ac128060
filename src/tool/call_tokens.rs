//! The service that issues the tokens of calls, and ends them.

use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;

use crate::domain::api_key::SecretDigest;
use crate::domain::call_token::CallBinding;
use crate::domain::machine::Failure;
use crate::domain::time::Timestamp;

/// Issues the tokens of calls, and ends them.
#[async_trait]
pub trait CallTokens: Send + Sync {
    /// Issues a token for a call, in place of an earlier one of the same call.
    ///
    /// # Errors
    /// When it cannot be stored.
    async fn issue(&self, call: CallBinding, lifetime: Duration) -> Result<IssuedCallToken, Failure>;

    /// Ends a token. When the database fails, the token ends with the run, or when its time is over.
    async fn end(&self, token: SecretDigest);

    /// Ends a token without being waited for.
    fn end_soon(&self, token: SecretDigest);
}

/// A new token.
pub struct IssuedCallToken {
    /// The text.
    pub text: SecretString,
    /// The digest of the text.
    pub digest: SecretDigest,
    /// The time from which the token is refused, whatever else happens.
    pub expires_at: Timestamp,
}

/// No tokens: for agents without a database.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCallTokens;

#[async_trait]
impl CallTokens for NoCallTokens {
    async fn issue(&self, _: CallBinding, _: Duration) -> Result<IssuedCallToken, Failure> {
        Err(Failure::new("StorageError", "there is no database for tokens of calls"))
    }

    async fn end(&self, _: SecretDigest) {}

    fn end_soon(&self, _: SecretDigest) {}
}
