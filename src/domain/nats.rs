//! The addresses of NATS servers.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;
use serde::Deserialize;
use url::Url;

/// The port of NATS, unless the URL has another one.
const DEFAULT_PORT: u16 = 4222;
/// The largest number of servers in a URL.
const MAX_SERVERS: usize = 16;

/// The URL of NATS, `nats://host:4222`, or of several servers of one NATS cluster with commas between them. It may
/// contain a password or a token, which is not printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(transparent)]
pub struct NatsUrl(String);

impl From<&str> for NatsUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl fmt::Display for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.servers() {
            Ok(servers) => write!(f, "{servers}"),
            Err(_) => f.write_str("nats:…"),
        }
    }
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The servers of a NATS cluster, and the login for them.
#[derive(Debug, Clone)]
pub struct NatsServers {
    /// The addresses: `nats://host:port`, or `tls://host:port` for a connection that must be encrypted.
    pub addresses: Vec<String>,
    /// The login, if the URL has one.
    pub login: Option<NatsLogin>,
}

/// The login in the URL of NATS.
#[derive(Debug, Clone)]
pub enum NatsLogin {
    /// A token: `nats://TOKEN@host`.
    Token(SecretString),
    /// A user with a password: `nats://USER:PASSWORD@host`.
    Password {
        /// The name of the user.
        user: String,
        /// The password.
        password: SecretString,
    },
}

impl NatsServers {
    /// Returns whether the connection to each server must be encrypted.
    pub fn are_encrypted(&self) -> bool {
        self.addresses.iter().all(|address| address.starts_with("tls://"))
    }
}

impl fmt::Display for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses.join(","))
    }
}

impl NatsUrl {
    /// Returns the servers and the login.
    ///
    /// # Errors
    /// Returns the reason why the URL cannot be used, as a clause after "the URL". It names no part of the login.
    pub fn servers(&self) -> Result<NatsServers, String> {
        let mut addresses = vec![];
        let mut login = None;
        for part in self.0.split(',').map(str::trim) {
            // The errors of the parser are left out: what is wrong may be a part of a password.
            let url = Url::parse(part).map_err(|_| {
                "must be `nats://HOST:PORT`, or several with commas between them; other characters in a password are \
                 written as `%` and two hexadecimal digits"
                    .to_owned()
            })?;
            addresses.push(address_of(&url)?);
            login = login.or(login_of(&url)?);
        }
        if addresses.len() > MAX_SERVERS {
            return Err(format!("must name at most {MAX_SERVERS} servers"));
        }
        Ok(NatsServers { addresses, login })
    }
}

/// Returns the address in a URL, without a login.
fn address_of(url: &Url) -> Result<String, String> {
    let scheme = url.scheme();
    if !["nats", "tls"].contains(&scheme) {
        return Err("must begin with `nats://`, or with `tls://` for a connection that must be encrypted".to_owned());
    }
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| "must name a host".to_owned())?;
    let has_more = !["", "/"].contains(&url.path()) || url.query().is_some() || url.fragment().is_some();
    if has_more {
        return Err("must end with the host and the port".to_owned());
    }
    let port = url.port().unwrap_or(DEFAULT_PORT);
    Ok(format!("{scheme}://{host}:{port}"))
}

/// Returns the login in a URL.
fn login_of(url: &Url) -> Result<Option<NatsLogin>, String> {
    let decode = |text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded
            .map(Cow::into_owned)
            .map_err(|_| "must have a login in UTF-8".to_owned())
    };
    if url.username().is_empty() && url.password().is_none() {
        return Ok(None);
    }
    let user = decode(url.username())?;
    Ok(Some(match url.password() {
        None => NatsLogin::Token(user.into()),
        Some(password) => NatsLogin::Password {
            user,
            password: decode(password)?.into(),
        },
    }))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn read(url: &str) -> Result<NatsServers, String> {
        NatsUrl::from(url).servers()
    }

    #[test]
    fn a_url_names_servers_and_a_login() {
        let plain = read("nats://one.internal").unwrap();
        assert_eq!(plain.addresses, ["nats://one.internal:4222"]);
        assert!(plain.login.is_none());
        let several = read("tls://me:p%40ss@one:4223, tls://two").unwrap();
        assert_eq!(several.addresses, ["tls://one:4223", "tls://two:4222"]);
        assert!(several.are_encrypted() && !plain.are_encrypted());
        assert!(!read("tls://one,nats://two").unwrap().are_encrypted());
        let Some(NatsLogin::Password { user, password }) = several.login else {
            panic!("a password");
        };
        assert_eq!(user.as_str(), "me");
        assert_eq!(password.expose_secret(), "p@ss");
        let Some(NatsLogin::Token(token)) = read("nats://t0ken@one").unwrap().login else {
            panic!("a token");
        };
        assert_eq!(token.expose_secret(), "t0ken");
    }

    #[test]
    fn neither_a_password_nor_a_token_is_printed() {
        for url in [
            "nats://me:s3cret@one",
            "nats://s3cret@one",
            "nats://me:s3cret@one:port",
            "s3cret",
            "http://me:s3cret@one",
            "nats://me:s3cret@one/s3cret",
        ] {
            let url = NatsUrl::from(url);
            let printed = format!("{url} {url:?} {:?}", url.servers());
            assert!(!printed.contains("s3cret"), "{printed}");
        }
    }

    #[test]
    fn a_url_of_another_kind_is_refused_with_the_reason() {
        assert!(read("http://one").unwrap_err().contains("must begin with `nats://`"));
        assert!(read("one:4222").unwrap_err().contains("must begin with `nats://`"));
        assert!(read("nats://").unwrap_err().contains("must"));
        assert!(read("nats://one/two").unwrap_err().contains("must end with"));
    }
}
