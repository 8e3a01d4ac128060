//! Stream tickets: with a ticket in the query, a browser opens a stream or a WebSocket, for which it can send no
//! headers.
//!
//! A ticket is valid for [`TICKET_LIFETIME`] and once. It is stored, so that this holds on all servers of a database,
//! and it is stored as a digest, so that nobody can use what the database contains.

use std::sync::Arc;
use std::time::Duration;

use ring::rand::SystemRandom;
use secrecy::SecretString;

use super::keys::{ApiKeys, random_bytes};
use super::store::CredentialStore;
use super::{AuthError, KeyError};
use crate::domain::api_key::{ApiKeyId, StoredTicket};
use crate::domain::identity::{Credential, Identity};
use crate::domain::secret::{NewSecret, digest_of_secret};
use crate::domain::time::{Clock, Timestamp};

/// The time for which a ticket can be used.
pub const TICKET_LIFETIME: Duration = Duration::from_mins(1);
/// The first part of the text of every ticket.
const TICKET_PREFIX: &str = "adjt_";

/// The tickets.
pub(super) struct Tickets {
    store: Arc<dyn CredentialStore>,
    clock: Arc<dyn Clock>,
    random: SystemRandom,
}

/// A new ticket.
pub struct IssuedTicket {
    /// The text of the ticket.
    pub text: SecretString,
    /// The time from which it is refused.
    pub expires_at: Timestamp,
}

impl Tickets {
    /// Creates the handle.
    pub(super) fn new(store: Arc<dyn CredentialStore>, clock: Arc<dyn Clock>) -> Self {
        let random = SystemRandom::new();
        Self { store, clock, random }
    }

    /// Creates a ticket that stands for an identity. It expires with the identity, if that is earlier.
    ///
    /// # Errors
    /// If the user has too many unused tickets, or the database fails.
    pub(super) async fn issue(&self, identity: &Identity) -> Result<IssuedTicket, KeyError> {
        let now = self.clock.now();
        let latest = now.plus(TICKET_LIFETIME);
        let expires_at = identity.expires_at.map_or(latest, |end| end.min(latest));
        let secret = NewSecret::of_random(TICKET_PREFIX, random_bytes(&self.random)?);
        let ticket = StoredTicket {
            digest: secret.digest,
            identity: identity.clone(),
            expires_at,
        };
        if !self.store.insert_ticket(ticket, now).await? {
            return Err(KeyError::TooManyTickets);
        }
        Ok(IssuedTicket {
            text: secret.text,
            expires_at,
        })
    }

    /// Returns the identity of a ticket, which cannot be used again.
    ///
    /// # Errors
    /// If there is no such ticket, if it was used or has expired, if the key behind it was revoked, or if the database
    /// fails.
    pub(super) async fn redeem(&self, text: &str, keys: Option<&ApiKeys>) -> Result<Arc<Identity>, AuthError> {
        let digest = digest_of_secret(TICKET_PREFIX, text);
        let digest = digest.ok_or_else(|| AuthError::refused("the text is no ticket"))?;
        let found = self.store.take_ticket(digest).await?;
        let ticket = found.ok_or_else(|| AuthError::refused("there is no such ticket, or it was used"))?;
        if ticket.expires_at <= self.clock.now() {
            return Err(AuthError::refused("the ticket has expired"));
        }
        if !ticket.identity.credential.is_verified() {
            return Err(AuthError::refused("the ticket stands for nobody"));
        }
        if let Credential::ApiKey(id) = &ticket.identity.credential
            && let Some(id) = ApiKeyId::read(id)
        {
            let keys = keys.ok_or_else(|| AuthError::refused("the API keys of the database are switched off"))?;
            if !keys.is_valid(&id).await? {
                return Err(AuthError::refused(
                    "the API key behind the ticket has expired or was revoked",
                ));
            }
        }
        Ok(Arc::new(ticket.identity))
    }
}
