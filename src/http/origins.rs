//! Checks of the `Origin` and `Host` headers.
//!
//! Browsers must not act for pages that the owner did not allow, with or without authentication. A page cannot forge
//! two headers: `Origin` names the page that sends the request, and `Host` the name under which the browser found the
//! server. A page that points its own DNS name to the server's address (DNS rebinding) has an allowed origin and a
//! foreign host.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use url::Url;

use super::error::ApiError;
use crate::domain::identity::Tenant;
use crate::domain::loopback::{is_loopback, is_loopback_name};
use crate::domain::tenant::{TenantSettings, Tenants};
use crate::domain::text_limits::first_chars;

/// The word in `cors_origins` for all pages of this machine, on any port.
pub const LOOPBACK: &str = "loopback";

/// The longest part of a header that an error repeats, in characters.
const MAX_REPEATED_CHARS: usize = 200;

/// The origins of web pages that may use the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginRules {
    any: bool,
    loopback: bool,
    /// The allowed origins as browsers write them.
    named: Vec<String>,
}

impl OriginRules {
    /// Creates the rules from `words`: `*` for any page, `loopback` for pages of this machine, and origins.
    pub fn new(words: &[String]) -> Self {
        let origins = words.iter().filter(|word| *word != "*" && *word != LOOPBACK);
        Self {
            any: words.iter().any(|word| word == "*"),
            loopback: words.iter().any(|word| word == LOOPBACK),
            named: origins
                .filter_map(|word| Url::parse(word).ok())
                .map(|url| url.origin().ascii_serialization())
                .collect(),
        }
    }

    /// Returns true if pages of any origin may use the server.
    pub fn any(&self) -> bool {
        self.any
    }

    /// Returns true if pages of this origin may use the server.
    pub fn allows(&self, origin: &HeaderValue) -> bool {
        if self.any {
            return true;
        }
        let Some(origin) = read_origin(origin) else {
            return false;
        };
        if self.loopback && matches!(origin.scheme(), "http" | "https") && origin.host().is_some_and(is_loopback) {
            return true;
        }
        self.named.contains(&origin.origin().ascii_serialization())
    }
}

/// An origin as a browser sends it; `None` for `null`.
fn read_origin(origin: &HeaderValue) -> Option<Url> {
    let text = origin.to_str().ok()?;
    Url::parse(text).ok().filter(Url::has_host)
}

/// The host names of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRules {
    any: bool,
    /// The names in lower case.
    names: Vec<String>,
    bound: Option<IpAddr>,
}

impl HostRules {
    /// Creates the rules from the loopback names, the `bound` address, and `names`: `*` for any, `*.example.org` for
    /// all below a domain. A server that is bound to all addresses accepts any IP address as its host, since DNS
    /// rebinding needs a name.
    pub fn new(names: &[String], bound: Option<IpAddr>) -> Self {
        Self {
            any: names.iter().any(|name| name == "*"),
            names: names
                .iter()
                .map(|name| name.trim_end_matches('.').to_ascii_lowercase())
                .collect(),
            bound: bound.map(|ip| ip.to_canonical()),
        }
    }

    /// Returns true if the server accepts this host.
    fn allows(&self, authority: &Authority) -> bool {
        if self.any {
            return true;
        }
        // A user name is not allowed in `Host` and hides where the host begins.
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if let Ok(ip) = host.parse::<IpAddr>() {
            let ip = ip.to_canonical();
            let is_bound = self.bound.is_some_and(|bound| bound.is_unspecified() || bound == ip);
            return ip.is_loopback() || is_bound || self.names.iter().any(|name| name == host);
        }
        is_loopback_name(host) || self.has_name(host)
    }

    fn has_name(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let is_named = |name: &String| match name.strip_prefix("*.") {
            Some(domain) => host.strip_suffix(domain).is_some_and(|below| below.ends_with('.')),
            None => *name == host,
        };
        self.names.iter().any(is_named)
    }
}

/// The pages and the host names of single tenants. They are checked when the caller is known; before that, and for
/// preflight requests, which have no credentials, those of all tenants together count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantSites {
    tenants: BTreeMap<Tenant, TenantSite>,
    /// The site of all other tenants; none if no tenant has a site.
    otherwise: Option<TenantSite>,
    checks_origins: bool,
}

/// The pages and the host names of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TenantSite {
    origins: OriginRules,
    hosts: HostRules,
    /// The names that the tenant lists itself.
    own: HostRules,
    /// The names of other tenants.
    others: HostRules,
}

impl TenantSites {
    /// Creates the rules from the origins and names of the server, the address it is bound to, and the settings of
    /// tenants.
    pub fn new(origins: &[String], hosts: &[String], bound: Option<IpAddr>, tenants: &Tenants) -> Self {
        let has_site = |settings: &TenantSettings| settings.cors_origins.is_some() || settings.hosts.is_some();
        if !tenants.iter().any(|(_, settings)| has_site(settings)) {
            return Self::default();
        }
        let site = |settings: &TenantSettings| {
            let own = settings.hosts.as_deref();
            let others = tenants.iter().flat_map(|(_, other)| other.hosts.iter().flatten());
            let others = others.filter(|name| !own.is_some_and(|own| own.contains(name)));
            TenantSite {
                origins: OriginRules::new(settings.cors_origins.as_deref().unwrap_or(origins)),
                hosts: HostRules::new(own.unwrap_or(hosts), bound),
                own: HostRules::new(own.unwrap_or_default(), None),
                others: HostRules::new(&others.cloned().collect::<Vec<_>>(), None),
            }
        };
        let all = tenants.iter();
        Self {
            tenants: all.map(|(tenant, settings)| (tenant.clone(), site(settings))).collect(),
            otherwise: Some(site(&TenantSettings::default())),
            checks_origins: tenants.iter().any(|(_, settings)| settings.cors_origins.is_some()),
        }
    }

    /// Refuses a request for a caller of this tenant from a page, or under a host name, of others.
    ///
    /// # Errors
    /// 421 for a host, 403 for a page.
    pub(super) fn check<B>(&self, tenant: &Tenant, request: &Request<B>) -> Result<(), ApiError> {
        let Some(site) = self.tenants.get(tenant).or(self.otherwise.as_ref()) else {
            return Ok(());
        };
        // The request has passed the check of all names together.
        let in_header = || {
            let host = request.headers().get(header::HOST)?;
            Authority::try_from(host.as_bytes()).ok()
        };
        let authority = request.uri().authority().cloned().or_else(in_header);
        let authority = authority.unwrap_or_else(|| Authority::from_static("localhost"));
        let is_of_others = site.others.has_name(authority.host()) && !site.own.has_name(authority.host());
        if is_of_others || !site.hosts.allows(&authority) {
            return Err(ApiError::host_of_others(
                &shorten(authority.as_str().as_bytes()),
                tenant,
            ));
        }
        if !self.checks_origins {
            return Ok(());
        }
        let is_allowed = |origin: &HeaderValue| is_same(origin, &authority) || site.origins.allows(origin);
        let all = request.headers().get_all(header::ORIGIN);
        match all.iter().find(|origin| !is_allowed(origin)) {
            None => Ok(()),
            Some(origin) => {
                let named = format!("the origin {:?}", shorten(origin.as_bytes()));
                Err(ApiError::origin_of_others(&named, tenant))
            }
        }
    }
}

/// Refuses a request with a foreign host, and a changing request from a foreign page.
///
/// # Errors
/// 421 for a foreign host, 403 for a foreign page.
pub(super) fn check<B>(origins: &OriginRules, hosts: &HostRules, request: &Request<B>) -> Result<(), ApiError> {
    let authority = check_host(hosts, request)?;
    let upgrades = request.headers().contains_key(header::UPGRADE);
    let reads = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
    );
    if reads && !upgrades {
        return Ok(());
    }
    check_origin(origins, &authority, request.headers())
}

/// Refuses a request from a foreign page even if its method normally only reads.
///
/// A page can send a GET without `Origin`, for example as an image. Browsers then set `Sec-Fetch-Site`.
///
/// # Errors
/// 403 for a foreign page.
pub(super) fn check_read_with_effect(origins: &OriginRules, headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(header::ORIGIN) {
        let authority = headers
            .get(header::HOST)
            .and_then(|host| Authority::try_from(host.as_bytes()).ok());
        return match authority {
            Some(authority) => check_origin(origins, &authority, headers),
            None => check_named_origin(origins, headers),
        };
    }
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    match site {
        Some(b"cross-site" | b"same-site") if !origins.any => Err(ApiError::foreign_origin("another site")),
        _ => Ok(()),
    }
}

fn check_origin(origins: &OriginRules, own: &Authority, headers: &HeaderMap) -> Result<(), ApiError> {
    if headers
        .get_all(header::ORIGIN)
        .iter()
        .all(|origin| is_same(origin, own))
    {
        return Ok(());
    }
    check_named_origin(origins, headers)
}

fn check_named_origin(origins: &OriginRules, headers: &HeaderMap) -> Result<(), ApiError> {
    let foreign = headers
        .get_all(header::ORIGIN)
        .iter()
        .find(|origin| !origins.allows(origin));
    let refusal =
        |origin: &HeaderValue| ApiError::foreign_origin(&format!("the origin {:?}", shorten(origin.as_bytes())));
    foreign.map_or(Ok(()), |origin| Err(refusal(origin)))
}

/// Returns true if a page of this origin was loaded from this server.
fn is_same(origin: &HeaderValue, own: &Authority) -> bool {
    let Some(origin) = read_origin(origin) else {
        return false;
    };
    let default = match origin.scheme() {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let host = origin.host_str().unwrap_or_default();
    host.eq_ignore_ascii_case(own.host()) && origin.port().unwrap_or(default) == own.port_u16().unwrap_or(default)
}

/// The host of the request, which must be one of the server's names in every place that states it.
fn check_host<B>(hosts: &HostRules, request: &Request<B>) -> Result<Authority, ApiError> {
    let in_headers = request.headers().get_all(header::HOST);
    let mut named = None;
    for host in in_headers {
        let authority = Authority::try_from(host.as_bytes())
            .ok()
            .filter(|authority| hosts.allows(authority));
        let authority = authority.ok_or_else(|| ApiError::unknown_host(&shorten(host.as_bytes())))?;
        if named.replace(authority).is_some() {
            return Err(ApiError::unknown_host("named twice"));
        }
    }
    // HTTP/2 has it in the request URI.
    if let Some(authority) = request.uri().authority() {
        if !hosts.allows(authority) {
            return Err(ApiError::unknown_host(&shorten(authority.as_str().as_bytes())));
        }
        named = Some(authority.clone());
    }
    match named {
        Some(authority) => Ok(authority),
        None if hosts.any => Ok(Authority::from_static("localhost")),
        None => Err(ApiError::no_host()),
    }
}

/// A part of a header as an error repeats it.
fn shorten(bytes: &[u8]) -> String {
    first_chars(&String::from_utf8_lossy(bytes), MAX_REPEATED_CHARS).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(words: &[&str], origin: &str) -> bool {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        OriginRules::new(&words).allows(&HeaderValue::from_str(origin).expect("a header"))
    }

    #[test]
    fn loopback_allows_every_page_of_this_machine_and_no_other() {
        for origin in [
            "http://localhost",
            "http://localhost:3000",
            "https://localhost:8443",
            "http://app.localhost:5173",
            "http://127.0.0.1:3000",
            "http://127.8.8.8",
            "http://[::1]:3000",
        ] {
            assert!(allows(&["loopback"], origin), "{origin}");
        }
        for origin in [
            "null",
            "https://evil.example",
            "http://localhost.evil.example",
            "http://evil-localhost",
            "http://127.0.0.1.evil.example",
            "http://192.168.0.1",
            "file://",
            "chrome-extension://localhost",
            "",
        ] {
            assert!(!allows(&["loopback"], origin), "{origin}");
        }
    }

    #[test]
    fn origins_are_compared_in_the_form_of_browsers() {
        assert!(allows(&["https://chat.example.org:443"], "https://chat.example.org"));
        assert!(allows(&["loopback", "https://chat.example.org"], "http://localhost:1"));
        assert!(!allows(&["https://chat.example.org"], "http://chat.example.org"));
        assert!(!allows(&["https://chat.example.org"], "https://chat.example.org:8443"));
        assert!(!allows(&[], "http://localhost"));
        assert!(allows(&["*"], "null"));
    }

    fn answers(names: &[&str], bound: &str, host: &str) -> bool {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let rules = HostRules::new(&names, Some(bound.parse().expect("an address")));
        Authority::try_from(host).is_ok_and(|authority| rules.allows(&authority))
    }

    #[test]
    fn a_server_accepts_loopback_names_its_own_address_and_the_configured_names() {
        for host in [
            "localhost:8123",
            "LOCALHOST",
            "a.localhost",
            "127.0.0.1:1",
            "127.1.2.3",
            "[::1]:8123",
            "localhost.",
        ] {
            assert!(answers(&[], "127.0.0.1", host), "{host}");
        }
        for host in [
            "rebind.evil.example:8123",
            "localhost.evil.example",
            "10.0.0.7",
            "me@localhost",
            "localhost@evil.example",
        ] {
            assert!(!answers(&[], "127.0.0.1", host), "{host}");
        }
        assert!(answers(&[], "10.0.0.7", "10.0.0.7:8123"));
        assert!(!answers(&[], "10.0.0.7", "10.0.0.8:8123"));
        assert!(answers(&["agents.example.org"], "10.0.0.7", "Agents.Example.org"));
        assert!(!answers(&["agents.example.org"], "10.0.0.7", "x.agents.example.org"));
        assert!(answers(&["*.example.org"], "10.0.0.7", "agents.example.org"));
        assert!(!answers(&["*.example.org"], "10.0.0.7", "example.org"));
        assert!(!answers(&["*.example.org"], "10.0.0.7", "evilexample.org"));
        assert!(answers(&["*"], "10.0.0.7", "anything.example"));
    }

    #[test]
    fn a_server_that_is_bound_to_all_addresses_accepts_any_address_and_no_name() {
        assert!(answers(&[], "0.0.0.0", "192.168.0.7:8123"));
        assert!(answers(&[], "::", "[2001:db8::7]:8123"));
        assert!(!answers(&[], "0.0.0.0", "rebind.evil.example"));
    }

    #[test]
    fn a_page_of_the_server_itself_is_not_foreign() {
        let same = |origin: &str, own: &str| {
            is_same(
                &HeaderValue::from_str(origin).expect("a header"),
                &Authority::try_from(own).expect("a host"),
            )
        };
        assert!(same("http://agents.example:8123", "agents.example:8123"));
        assert!(same("https://agents.example", "agents.example"));
        assert!(same("http://[::1]:8123", "[::1]:8123"));
        assert!(!same("http://agents.example", "agents.example:8123"));
        assert!(!same("http://evil.example:8123", "agents.example:8123"));
        assert!(!same("null", "agents.example"));
    }
}
