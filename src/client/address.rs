//! The address of the server, and whether a key may be sent to it.

use std::net::IpAddr;

use url::Url;

use super::error::{ClientError, ClientResult};
use crate::config::client::ServerOptions;
use crate::domain::loopback::is_protected;

/// The address at which a server listens by default.
const DEFAULT_ADDRESS: &str = "127.0.0.1:8123";

/// The server that a command talks to.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    /// The URL, with the path below which the endpoints are.
    pub(super) url: Url,
    /// True if the user has named it.
    pub is_given: bool,
}

impl ServerAddress {
    /// Returns the server that the options name, or else the one that listens at `configured` on this machine.
    ///
    /// # Errors
    /// The address is no http or https URL, or a key would go over plain http to another machine.
    pub fn choose(options: &ServerOptions, configured: Option<&str>) -> ClientResult<Self> {
        let address = match options.server.as_deref().filter(|text| !text.trim().is_empty()) {
            Some(text) => Self {
                url: parse(text)?,
                is_given: true,
            },
            None => Self {
                url: parse(&local_url(configured.unwrap_or(DEFAULT_ADDRESS)))?,
                is_given: false,
            },
        };
        if options.api_key.is_some() && !options.insecure_http && !is_protected(&address.url) {
            return Err(ClientError::Usage(format!(
                "the API key would go to {} over http, where others can read it: use https, or --insecure-http",
                address.display()
            )));
        }
        Ok(address)
    }

    /// Returns the address of a server of this process.
    ///
    /// # Errors
    /// If the address is no URL.
    pub fn of_process(address: std::net::SocketAddr) -> ClientResult<Self> {
        Ok(Self {
            url: parse(&format!("http://{address}"))?,
            is_given: false,
        })
    }

    /// Returns the address for messages, without parts that may be secret.
    pub fn display(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

/// Returns the URL of a server on this machine that listens at this address. Port 0 is no address to talk to.
fn local_url(listen: &str) -> String {
    let parts = listen.rsplit_once(':').filter(|parts| parts.1 != "0");
    let Some((host, port)) = parts else {
        return format!("http://{DEFAULT_ADDRESS}");
    };
    let host = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => "127.0.0.1",
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => "[::1]",
        Ok(_) | Err(_) => host,
    };
    format!("http://{host}:{port}")
}

fn parse(text: &str) -> ClientResult<Url> {
    let text = text.trim();
    // `localhost:8123` would be a URL of the scheme `localhost`.
    let with_scheme = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let url = Url::parse(&with_scheme).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
    let url = url.filter(|url| url.username().is_empty() && url.password().is_none());
    // The text may contain a secret and is not repeated.
    url.ok_or_else(|| {
        ClientError::Usage(
            "--server or ADJUTANT_URL must be an http or https URL without a name and a password, as in \
             https://agents.example.org"
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(server: &str, has_key: bool) -> ServerOptions {
        ServerOptions {
            server: Some(server.to_owned()),
            api_key: has_key.then(|| "adj_secret".into()),
            ..ServerOptions::default()
        }
    }

    #[test]
    fn a_key_goes_over_plain_http_to_this_machine_only() {
        for server in [
            "http://127.0.0.1:1",
            "localhost:8123",
            "http://[::1]:1",
            "http://a.localhost",
            "https://example.org",
        ] {
            assert!(ServerAddress::choose(&options(server, true), None).is_ok(), "{server}");
        }
        for server in [
            "http://example.org",
            "http://10.0.0.1",
            "http://127.example.org",
            "http://0.0.0.0",
        ] {
            let refused = ServerAddress::choose(&options(server, true), None).expect_err(server);
            assert_eq!(refused.exit_code(), 2);
            assert!(!refused.to_string().contains("adj_secret"));
            assert!(ServerAddress::choose(&options(server, false), None).is_ok(), "{server}");
            let insecure = ServerOptions {
                insecure_http: true,
                ..options(server, true)
            };
            assert!(ServerAddress::choose(&insecure, None).is_ok(), "{server}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused_and_not_repeated() {
        for server in [
            "ftp://secret.example.org",
            "http://me:secret@example.org",
            "http://",
            "secret secret",
        ] {
            let refused = ServerAddress::choose(&options(server, false), None).expect_err(server);
            assert!(!refused.to_string().contains("secret"), "{refused}");
        }
    }

    #[test]
    fn the_configured_address_is_reached_from_this_machine() {
        for (listen, url) in [
            ("0.0.0.0:9", "http://127.0.0.1:9"),
            ("[::]:9", "http://[::1]:9"),
            ("127.0.0.1:0", "http://127.0.0.1:8123"),
            ("localhost:9", "http://localhost:9"),
        ] {
            let found = ServerAddress::choose(&ServerOptions::default(), Some(listen)).expect(listen);
            assert_eq!(found.display(), url);
            assert!(!found.is_given);
        }
    }
}
