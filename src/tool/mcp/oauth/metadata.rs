//! The search for the authorization server of an MCP server: metadata of the server (RFC 9728) and of its authorization
//! server (RFC 8414, and OpenID Connect Discovery).

use reqwest::header::ACCEPT;
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::error::ConnectionError;
use super::challenge::Challenge;
use super::{MAX_ANSWER_BYTES, invalid, parse, send};
use crate::net::read_bounded;
use crate::net::ssrf::{AddressRules, is_private};

/// The most scopes that a server names which are asked for.
const MAX_SCOPES: usize = 64;

/// Finds the authorization server of a server.
pub(super) struct MetadataSearch<'a> {
    client: &'a Client,
    server: &'a Url,
}

/// The authorization server of a server.
pub(super) struct FoundIssuer {
    pub(super) issuer: IssuerMetadata,
    /// The resource that the tokens are for, if the server names it.
    pub(super) resource: Option<String>,
    /// The scopes that the server names.
    pub(super) scopes: Vec<String>,
}

/// The metadata of a server.
#[derive(Default, Deserialize)]
struct ResourceMetadata {
    resource: Option<String>,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// The metadata of an authorization server.
#[derive(Deserialize)]
pub(super) struct IssuerMetadata {
    pub(super) issuer: String,
    pub(super) token_endpoint: String,
    pub(super) authorization_endpoint: Option<String>,
    pub(super) registration_endpoint: Option<String>,
    pub(super) revocation_endpoint: Option<String>,
    #[serde(default)]
    pub(super) code_challenge_methods_supported: Vec<String>,
    #[serde(default)]
    pub(super) authorization_response_iss_parameter_supported: bool,
}

impl<'a> MetadataSearch<'a> {
    pub(super) fn new(client: &'a Client, server: &'a Url) -> Self {
        Self { client, server }
    }

    /// Finds the authorization server, given the challenge of the server.
    ///
    /// # Errors
    /// If there are no metadata, or invalid ones.
    pub(super) async fn find(&self, challenge: &Challenge) -> Result<FoundIssuer, ConnectionError> {
        let of_server = self.of_server(challenge).await?;
        let issuer = match &of_server {
            None => self.origin(),
            Some(metadata) => {
                let named = metadata.authorization_servers.first();
                let named = named.ok_or_else(|| invalid("its metadata names no authorization server"))?;
                self.allowed(named)?
            }
        };
        let of_server = of_server.unwrap_or_default();
        Ok(FoundIssuer {
            issuer: self.of_issuer(&issuer).await?,
            resource: of_server.resource,
            scopes: of_server.scopes_supported.into_iter().take(MAX_SCOPES).collect(),
        })
    }

    /// Reads the metadata of the server: those that it names itself, or those at the well-known places.
    async fn of_server(&self, challenge: &Challenge) -> Result<Option<ResourceMetadata>, ConnectionError> {
        let named = challenge.resource_metadata.as_deref();
        let named = named.map(|named| self.allowed(named)).transpose()?;
        let places = named
            .into_iter()
            .chain(well_known(self.server, "oauth-protected-resource"));
        for place in places {
            let Some(metadata) = self.read::<ResourceMetadata>(place).await? else {
                continue;
            };
            // Otherwise a token that is meant for another server would be sent to this one (RFC 9728, section 3.3).
            let is_of_server = |resource: &String| contains(resource, self.server);
            if !metadata.resource.as_ref().is_none_or(is_of_server) {
                return Err(invalid("its metadata are those of another server"));
            }
            return Ok(Some(metadata));
        }
        Ok(None)
    }

    async fn of_issuer(&self, issuer: &Url) -> Result<IssuerMetadata, ConnectionError> {
        let places = well_known(issuer, "oauth-authorization-server");
        let places = places.into_iter().chain(well_known(issuer, "openid-configuration"));
        for place in places.chain(openid_below(issuer)) {
            let Some(metadata) = self.read::<IssuerMetadata>(place).await? else {
                continue;
            };
            if metadata.issuer.trim_end_matches('/') != issuer.as_str().trim_end_matches('/') {
                return Err(invalid(
                    "the metadata of its authorization server are those of another one",
                ));
            }
            return Ok(metadata);
        }
        Err(invalid(
            "it has no metadata for OAuth; with the grant `client_credentials`, set `oauth.token_url`",
        ))
    }

    /// Reads a document of metadata; `None` if there is none.
    async fn read<T: DeserializeOwned>(&self, place: Url) -> Result<Option<T>, ConnectionError> {
        let response = send(self.client.get(place).header(ACCEPT, "application/json")).await?;
        if response.status() != StatusCode::OK {
            return Ok(None);
        }
        let body = read_bounded(response, MAX_ANSWER_BYTES).await.map_err(invalid)?;
        parse(&body).map(Some)
    }

    fn origin(&self) -> Url {
        let mut origin = self.server.clone();
        origin.set_path("");
        origin.set_query(None);
        origin.set_fragment(None);
        origin
    }

    /// Returns an address from metadata. What is sent there must not be sent without encryption, unless the server itself is
    /// reached so, and a server out there must not name an address that only this machine reaches.
    pub(super) fn allowed(&self, address: &str) -> Result<Url, ConnectionError> {
        let rules = AddressRules {
            allow_private: is_private(self.server),
            require_https: self.server.scheme() == "https",
            ..AddressRules::default()
        };
        let checked = rules.check("its metadata", address);
        checked.map_err(|invalid_address| invalid(format!("an address of {invalid_address}")))
    }
}

/// Returns whether a server is at the address of a resource or below it.
fn contains(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else {
        return false;
    };
    let path = resource.path().trim_end_matches('/');
    let rest = server.path().strip_prefix(path);
    let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    resource.origin() == server.origin() && is_below
}

/// Returns the places of a document of metadata about `url`: with its path, and without.
fn well_known(url: &Url, name: &str) -> Vec<Url> {
    let path = url.path().trim_end_matches('/');
    let place = |path: &str| {
        let mut place = url.clone();
        place.set_path(&format!("/.well-known/{name}{path}"));
        place.set_query(None);
        place.set_fragment(None);
        place
    };
    match path {
        "" => vec![place("")],
        path => vec![place(path), place("")],
    }
}

/// Returns the place at which OpenID Connect Discovery puts the metadata of an issuer with a path.
fn openid_below(issuer: &Url) -> Option<Url> {
    let path = issuer.path().trim_end_matches('/');
    let mut place = issuer.clone();
    place.set_path(&format!("{path}/.well-known/openid-configuration"));
    (!path.is_empty()).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("an address")
    }

    #[test]
    fn metadata_are_looked_for_with_the_path_first() {
        let texts = |places: Vec<Url>| places.into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(
            texts(well_known(&url("https://a.test/x/mcp?q=1"), "oauth-protected-resource")),
            [
                "https://a.test/.well-known/oauth-protected-resource/x/mcp",
                "https://a.test/.well-known/oauth-protected-resource"
            ]
        );
        assert_eq!(
            texts(well_known(&url("https://a.test/"), "oauth-authorization-server")),
            ["https://a.test/.well-known/oauth-authorization-server"]
        );
        let below = openid_below(&url("https://a.test/tenant")).map(String::from);
        assert_eq!(
            below.as_deref(),
            Some("https://a.test/tenant/.well-known/openid-configuration")
        );
    }

    #[test]
    fn a_server_names_only_addresses_that_it_could_have_itself() {
        let client = crate::tool::remote::client().expect("a client");
        let allows = |server: &str, address: &str| {
            let server = url(server);
            MetadataSearch::new(&client, &server).allowed(address).is_ok()
        };
        assert!(allows("https://a.test/mcp", "https://b.test/token"));
        for address in [
            "http://b.test/token",
            "file:///token",
            "https://127.0.0.1/token",
            "https://localhost/token",
            "https://10.0.0.1/token",
            "https://169.254.169.254/token",
            "https://[::1]/token",
        ] {
            assert!(!allows("https://a.test/mcp", address), "{address}");
        }
        assert!(allows("http://127.0.0.1:1/mcp", "http://127.0.0.1:2/token"));
        assert!(allows("https://10.0.0.1/mcp", "https://10.0.0.2/token"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_authorization_server_that_says_nothing_is_given_up() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = silent.local_addr().expect("an address");
        let client = crate::net::client_builder().build().expect("a client");
        let server = url(&format!("http://{address}/mcp"));
        let begun = tokio::time::Instant::now();
        let found = MetadataSearch::new(&client, &server).find(&Challenge::default()).await;
        let error = found.err().expect("there is no answer").to_string();
        assert!(error.contains("it took too long"), "{error}");
        assert_eq!(begun.elapsed().as_secs(), 15);
    }

    #[test]
    fn a_resource_contains_what_is_below_it() {
        let is_in = |resource: &str| contains(resource, &url("https://a.test/x/mcp"));
        for resource in [
            "https://a.test",
            "https://a.test/x",
            "https://a.test/x/mcp",
            "https://a.test/x/mcp/",
        ] {
            assert!(is_in(resource), "{resource}");
        }
        for resource in [
            "https://b.test/x/mcp",
            "http://a.test/x/mcp",
            "https://a.test/x/m",
            "https://a.test/y",
            "x",
        ] {
            assert!(!is_in(resource), "{resource}");
        }
    }
}
