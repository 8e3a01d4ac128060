//! The scopes in the settings of a server, and the errors about scopes that its access token lacks.
//!
//! Configured scopes are a limit: a server that asks for others does not get them. Without configured scopes it gets them.

use super::super::error::ConnectionError;
use crate::definition::mcp::McpOAuth;
use crate::domain::mcp_login::LoginKey;
use crate::domain::oauth_scopes::OAuthScopes;

/// The scopes in the settings of a server.
pub(super) struct ScopeSettings {
    /// The name of the server.
    pub(super) server: String,
    configured: OAuthScopes,
}

impl ScopeSettings {
    pub(super) fn of(server: &str, settings: &McpOAuth) -> Self {
        Self {
            server: server.to_owned(),
            configured: settings.configured_scopes(),
        }
    }

    /// Returns whether tokens may have any scopes that the server asks for.
    pub(super) fn allow_others(&self) -> bool {
        self.configured.is_empty()
    }

    /// Returns the scopes that a token lacks and that the settings do not allow.
    fn disallowed_scopes(&self, needed: &OAuthScopes) -> OAuthScopes {
        match self.allow_others() {
            true => OAuthScopes::default(),
            false => needed.without(&self.configured),
        }
    }

    /// Returns the error that a token which this server has got by itself lacks scopes.
    pub(super) fn client_lacks(&self, needed: &OAuthScopes) -> ConnectionError {
        let section = McpOAuth::section(&self.server);
        let beyond = self.disallowed_scopes(needed);
        let way_out = if !beyond.is_empty() {
            format!("an operator has to add {beyond} to `scopes` in `{section}`, which is a limit")
        } else if self.allow_others() {
            format!("an operator has to allow them at the authorization server, or to set `scopes` in `{section}`")
        } else {
            format!("`scopes` in `{section}` has them, so an operator has to allow them at the authorization server")
        };
        ConnectionError::ScopesMissing(format!("{}; {way_out}", describe_scopes(needed)))
    }

    /// Returns the error that the authorization server gave no token with further scopes, for this reason.
    pub(super) fn not_given(&self, needed: &OAuthScopes, reason: &str) -> ConnectionError {
        let section = McpOAuth::section(&self.server);
        ConnectionError::ScopesMissing(format!(
            "{}; {reason}; an operator has to allow them there, or to set `scopes` in `{section}`",
            describe_scopes(needed)
        ))
    }

    /// Returns the error that the token of a login lacks scopes.
    pub(super) fn login_lacks(&self, needed: &OAuthScopes, key: &LoginKey) -> ConnectionError {
        let command = key.login_command();
        let beyond = self.disallowed_scopes(needed);
        let way_out = match beyond.is_empty() {
            true => format!("an operator has to run `{command}`"),
            false => {
                let section = McpOAuth::section(&self.server);
                format!("an operator has to add {beyond} to `scopes` in `{section}`, and to run `{command}`")
            }
        };
        ConnectionError::ScopesMissing(format!(
            "{}; the login does not have them: {way_out}",
            describe_scopes(needed)
        ))
    }
}

/// Returns the text for scopes that a server asks for.
fn describe_scopes(needed: &OAuthScopes) -> String {
    match needed.is_empty() {
        true => "it does not say which".to_owned(),
        false => needed.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(scopes: &[&str]) -> ScopeSettings {
        let settings = McpOAuth {
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            ..McpOAuth::default()
        };
        ScopeSettings::of("vault", &settings)
    }

    #[test]
    fn an_error_names_the_scopes_and_what_an_operator_has_to_do() {
        let needed = OAuthScopes::read("a b");
        let key = LoginKey::new(None, "agent/vault");
        for (scopes, client, login) in [
            (
                &[][..],
                "`a`, `b`; an operator has to allow them at the authorization server, or to set `scopes` in \
                 `[mcp_servers.vault.oauth]`",
                "`a`, `b`; the login does not have them: an operator has to run `adjutant mcp login agent/vault`",
            ),
            (
                &["a"][..],
                "`a`, `b`; an operator has to add `b` to `scopes` in `[mcp_servers.vault.oauth]`, which is a limit",
                "`a`, `b`; the login does not have them: an operator has to add `b` to `scopes` in \
                 `[mcp_servers.vault.oauth]`, and to run `adjutant mcp login agent/vault`",
            ),
            (
                &["b", "a"][..],
                "`a`, `b`; `scopes` in `[mcp_servers.vault.oauth]` has them, so an operator has to allow them at the \
                 authorization server",
                "`a`, `b`; the login does not have them: an operator has to run `adjutant mcp login agent/vault`",
            ),
        ] {
            let settings = settings(scopes);
            let text = |error: ConnectionError| error.to_string();
            let begin = "requires scopes that its access token lacks: ";
            assert_eq!(text(settings.client_lacks(&needed)), format!("{begin}{client}"));
            assert_eq!(text(settings.login_lacks(&needed, &key)), format!("{begin}{login}"));
        }
        let unnamed = settings(&[]).client_lacks(&OAuthScopes::default()).to_string();
        assert!(unnamed.contains("it does not say which"), "{unnamed}");
    }
}
