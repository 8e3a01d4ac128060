//! `[mcp_servers.NAME.oauth]`: how the access tokens for a server are got.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::definition::diagnostic::{Diagnostic, FieldPath};
use crate::definition::words::address_problem;
use crate::domain::oauth_scopes::{MAX_SCOPE_BYTES, MAX_SCOPES, OAuthScopes, is_scope};

/// The access tokens for an MCP server that requires OAuth.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct McpOAuth {
    /// The grant: the server proves its own identity (`client_credentials`), or an operator logs in at a browser, with
    /// `adjutant mcp login` (`authorization_code`).
    pub grant: OAuthGrant,
    /// The id of the client at the authorization server. With the grant `authorization_code` the client is registered when a
    /// user logs in (RFC 7591) if there is none.
    pub client_id: String,
    /// The secret of the client. It is never printed. With the grant `authorization_code` a client may have none.
    #[cfg_attr(test, schemars(with = "String"))]
    pub client_secret: ClientSecret,
    /// The scopes of the tokens; those that the server asks for when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// The address for tokens; the one that the metadata of the server name when absent. For the grant `client_credentials`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_url: Option<String>,
    /// The resource that tokens are for (RFC 8707); `url` of the server when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The way in which the client proves its identity: in the header `authorization` (`basic`) or in the form (`post`).
    pub client_authentication: ClientAuthentication,
}

/// The grant by which access tokens are got (RFC 6749, sections 4.1 and 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OAuthGrant {
    /// The server proves its own identity.
    #[default]
    ClientCredentials,
    /// A user logs in at a browser.
    AuthorizationCode,
}

/// The secret of an OAuth client.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClientSecret(pub String);

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<not shown>")
    }
}

/// The way in which an OAuth client proves its identity (RFC 6749, section 2.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClientAuthentication {
    /// In the header `authorization`.
    #[default]
    Basic,
    /// In the form.
    Post,
}

impl McpOAuth {
    /// Returns the section of the configuration with these settings. `server` is the name of the server, or the one by which
    /// operators find it.
    pub fn section(server: &str) -> String {
        let name = server.rsplit('/').next().unwrap_or(server);
        format!("[mcp_servers.{name}.oauth]")
    }

    /// Returns the configured scopes. They are a limit: a server that asks for others does not get them.
    pub fn configured_scopes(&self) -> OAuthScopes {
        self.scopes.iter().map(String::as_str).collect()
    }

    /// Checks the settings. The fields of the diagnostics are relative to them.
    pub(super) fn check(&self) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let mut findings = vec![];
        let mut wrong = |field: &str, message: String| findings.push(Diagnostic::error(top.then(field), message));
        let has_id = !self.client_id.trim().is_empty();
        let has_secret = !self.client_secret.0.trim().is_empty();
        match self.grant {
            OAuthGrant::ClientCredentials => {
                if !has_id {
                    wrong("client_id", "must be given".to_owned());
                }
                if !has_secret {
                    wrong("client_secret", "must be given".to_owned());
                }
            }
            OAuthGrant::AuthorizationCode => {
                if has_secret && !has_id {
                    wrong("client_secret", "goes with `client_id` only".to_owned());
                }
                if self.token_url.is_some() {
                    let why =
                        "goes with the grant `client_credentials` only: the metadata of the server name the address";
                    wrong("token_url", why.to_owned());
                }
            }
        }
        if self.scopes.len() > MAX_SCOPES || !self.scopes.iter().all(|scope| is_scope(scope)) {
            wrong(
                "scopes",
                format!("must be at most {MAX_SCOPES} texts without spaces, of at most {MAX_SCOPE_BYTES} bytes each"),
            );
        }
        if let Some(problem) = self.token_url.as_deref().and_then(address_problem) {
            wrong("token_url", problem);
        }
        if let Some(problem) = self.resource.as_deref().and_then(address_problem) {
            wrong("resource", problem);
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::mcp::McpServerDefinition;

    fn findings(url: &str, oauth: McpOAuth) -> Vec<String> {
        let server = McpServerDefinition {
            url: Some(url.to_owned()),
            oauth: Some(oauth),
            ..McpServerDefinition::default()
        };
        server.check("vault").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_login_needs_neither_a_client_nor_a_secret() {
        let login = McpOAuth {
            grant: OAuthGrant::AuthorizationCode,
            ..McpOAuth::default()
        };
        assert_eq!(findings("https://a.test/mcp", login.clone()), [""; 0]);
        let public = McpOAuth {
            client_id: "adjutant".to_owned(),
            ..login.clone()
        };
        assert_eq!(findings("https://a.test/mcp", public), [""; 0]);
        let wrong = McpOAuth {
            client_secret: ClientSecret("s3cret".to_owned()),
            token_url: Some("https://b.test/token".to_owned()),
            ..login
        };
        let found = findings("https://a.test/mcp", wrong);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("oauth.client_secret: goes with `client_id` only"),
            "{found:?}"
        );
        assert!(found[1].starts_with("oauth.token_url: goes with"), "{found:?}");
        assert_eq!(findings("https://a.test/mcp", McpOAuth::default()).len(), 2);
    }

    #[test]
    fn a_login_needs_encryption_unless_the_server_is_on_this_machine() {
        let is_allowed = |url: &str| {
            let login = McpOAuth {
                grant: OAuthGrant::AuthorizationCode,
                ..McpOAuth::default()
            };
            findings(url, login).is_empty()
        };
        for url in [
            "https://a.test/mcp",
            "http://127.0.0.1:1/mcp",
            "http://localhost/mcp",
            "http://[::1]/mcp",
        ] {
            assert!(is_allowed(url), "{url}");
        }
        for url in [
            "http://a.test/mcp",
            "http://10.0.0.1/mcp",
            "http://localhost.a.test/mcp",
        ] {
            assert!(!is_allowed(url), "{url}");
        }
    }
}
