//! The SSRF guard: the addresses that requests caused by clients may go to.
//!
//! A client that may start runs or define agents could otherwise make the server call addresses that only the server
//! can reach. A name is checked by the addresses that it resolves to at the time of the connection, and the connection
//! uses exactly these addresses.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use crate::domain::Invalid;
use crate::domain::loopback::is_loopback_name;

/// The longest accepted URL in bytes.
const LONGEST: usize = 2048;

/// The rules for addresses that clients name.
#[derive(Debug, Clone, Default)]
pub struct AddressRules {
    /// True if all private addresses are allowed.
    pub allow_private: bool,
    /// The names and addresses that may be private.
    pub private_hosts: Vec<String>,
    /// The only allowed names and addresses, if not empty; `*.example.org` covers all names below it.
    pub allowed_hosts: Vec<String>,
    /// True if only https is allowed.
    pub require_https: bool,
}

/// The reason why a special address is refused.
pub const SPECIAL_ADDRESS: &str = "names a loopback, private or otherwise special address";

impl AddressRules {
    /// Checks the URL in `field`.
    ///
    /// # Errors
    /// Describes the problem without repeating the URL, which may contain a secret.
    pub fn check(&self, field: &str, text: &str) -> Result<Url, Invalid> {
        let wrong = |reason: &str| Invalid::new(field, reason);
        if text.len() > LONGEST {
            return Err(wrong(&format!("is longer than {LONGEST} bytes")));
        }
        let url = Url::parse(text)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.ok_or_else(|| wrong("must be an absolute http or https URL"))?;
        if self.require_https && url.scheme() != "https" {
            return Err(wrong("must begin with https://"));
        }
        let host = url.host().ok_or_else(|| wrong("must name a host"))?;
        let name = plain(&host.to_string());
        if !self.allowed_hosts.is_empty() && !self.allowed_hosts.iter().any(|allowed| is_covered(&name, allowed)) {
            return Err(wrong("names a host that this server is not allowed to call"));
        }
        if is_private(&url) && !self.may_be_inside(&name) {
            return Err(wrong(SPECIAL_ADDRESS));
        }
        Ok(url)
    }

    /// Returns true if this host may resolve to a private address.
    fn may_be_inside(&self, host: &str) -> bool {
        self.allow_private || self.private_hosts.iter().any(|inside| plain(inside) == plain(host))
    }
}

/// Returns whether a URL names a loopback, private or otherwise special address. Names are not resolved.
pub fn is_private(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => is_loopback_name(name),
        Some(Host::Ipv4(address)) => is_special(address.into()),
        Some(Host::Ipv6(address)) => is_special(address.into()),
        None => false,
    }
}

/// The canonical form of a name or address.
fn plain(host: &str) -> String {
    host.trim_end_matches('.')
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_ascii_lowercase()
}

fn is_covered(host: &str, allowed: &str) -> bool {
    match allowed.strip_prefix("*.") {
        Some(parent) => host
            .strip_suffix(&plain(parent))
            .is_some_and(|below| below.ends_with('.') && below.len() > 1),
        None => host == plain(allowed),
    }
}

/// A DNS resolver that returns only allowed addresses.
pub struct SsrfGuard(pub Arc<AddressRules>);

impl Resolve for SsrfGuard {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.0);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let may_be_inside = rules.may_be_inside(name.as_str());
            let good: Vec<SocketAddr> = found.filter(|found| may_be_inside || !is_special(found.ip())).collect();
            if good.is_empty() {
                return Err(Box::<dyn Error + Send + Sync>::from(FORBIDDEN));
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}

const FORBIDDEN: &str = "the name leads to loopback, private or otherwise special addresses only";

/// Returns true if an address is not part of the public internet.
fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_special_v4(address),
        IpAddr::V6(address) => is_special_v6(address),
    }
}

/// The special blocks of the IANA registry, and multicast.
fn is_special_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    matches!(
        (a, b, c),
        // "This network", private, loopback, link-local; multicast and reserved, broadcast included.
        (0 | 10 | 127 | 224..=255, _, _) | (169, 254, _) | (172, 16..=31, _) | (192, 168, _)
        // Shared by carriers; benchmarks; protocol assignments; relays of 6to4; documentation.
        | (100, 64..=127, _) | (198, 18..=19, _) | (192, 0, 0 | 2) | (192, 88, 99) | (198, 51, 100) | (203, 0, 113)
    )
}

/// All addresses outside of the allocated unicast range; an embedded IPv4 address is checked by the IPv4 rules.
fn is_special_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let v4_of = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match parts {
        // Mapped; translated; 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            is_special_v4(v4_of(high, low))
        }
        // Protocol assignments, Teredo among them; documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => true,
        [first, ..] => !(0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(rules: &AddressRules, url: &str) -> bool {
        rules.check("webhook", url).is_err()
    }

    #[test]
    fn public_addresses_are_allowed() {
        for url in [
            "https://example.org/hook?x=1",
            "http://93.184.216.34:8080/",
            "https://[2606:4700:4700::1111]/",
            "https://user:pass@example.org/",
            "https://[64:ff9b::5db8:d822]/",
        ] {
            assert!(!refused(&AddressRules::default(), url), "{url}");
        }
    }

    #[test]
    fn private_addresses_are_refused() {
        for url in [
            "http://localhost/",
            "http://LOCALHOST./",
            "http://a.localhost:80/",
            "http://127.0.0.1/",
            "http://127.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://0/",
            "http://10.0.0.1/",
            "http://172.31.0.1/",
            "http://192.168.1.1/",
            "http://169.254.169.254/latest",
            "http://100.64.0.1/",
            "http://198.18.0.1/",
            "http://192.0.0.8/",
            "http://192.0.2.1/",
            "http://198.51.100.1/",
            "http://203.0.113.1/",
            "http://224.0.0.1/",
            "http://255.255.255.255/",
            "http://240.0.0.1/",
            "http://[::1]/",
            "http://[::]/",
            "http://[fe80::1]/",
            "http://[fc00::1]/",
            "http://[fd12::1]/",
            "http://[ff02::1]/",
            "http://[fec0::1]/",
            "http://[2001:db8::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://[::127.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[64:ff9b:1::1]/",
            "http://[2002:7f00:1::]/",
            "http://[2001::1]/",
            "http://[100::1]/",
        ] {
            assert!(refused(&AddressRules::default(), url), "{url}");
        }
    }

    #[test]
    fn an_invalid_url_is_refused_and_not_repeated() {
        let long = format!("https://example.org/{}", "x".repeat(3000));
        for url in [
            "",
            "/hook",
            "hook",
            "ftp://example.org/",
            "file:///etc/passwd",
            "https://",
            "https://secret@",
            &long,
        ] {
            let invalid = AddressRules::default().check("webhook", url).expect_err("it is none");
            assert_eq!(invalid.field, "webhook");
            assert!(!invalid.reason.contains("secret"), "{invalid}");
        }
    }

    #[test]
    fn private_addresses_can_be_allowed() {
        let all = AddressRules {
            allow_private: true,
            ..AddressRules::default()
        };
        assert!(!refused(&all, "http://127.0.0.1/"));
        let some = AddressRules {
            private_hosts: vec!["10.1.2.3".into(), "Hooks.localhost".into(), "::1".into()],
            ..AddressRules::default()
        };
        for (url, expected) in [
            ("http://10.1.2.3/", false),
            ("http://hooks.localhost:9/", false),
            ("http://[::1]/", false),
            ("http://10.1.2.4/", true),
            ("http://localhost/", true),
        ] {
            assert_eq!(refused(&some, url), expected, "{url}");
        }
    }

    #[test]
    fn hosts_can_be_restricted() {
        let hosts = vec!["*.example.org".into(), "hooks.example.com".into()];
        let rules = AddressRules {
            allowed_hosts: hosts,
            require_https: true,
            ..AddressRules::default()
        };
        for (url, expected) in [
            ("https://a.example.org/", false),
            ("https://A.B.example.org./", false),
            ("https://hooks.example.com/", false),
            ("https://example.org/", true),
            ("https://evilexample.org/", true),
            ("https://example.com/", true),
            ("http://a.example.org/", true),
        ] {
            assert_eq!(refused(&rules, url), expected, "{url}");
        }
    }

    async fn leads_to(rules: AddressRules, name: &str) -> Option<usize> {
        let found = SsrfGuard(Arc::new(rules)).resolve(name.parse().expect("a name")).await;
        found.ok().map(Iterator::count)
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_private_addresses_is_refused() {
        assert_eq!(leads_to(AddressRules::default(), "localhost").await, None);
        assert!(
            leads_to(
                AddressRules {
                    allow_private: true,
                    ..AddressRules::default()
                },
                "localhost"
            )
            .await
                > Some(0)
        );
        assert!(
            leads_to(
                AddressRules {
                    private_hosts: vec!["localhost".into()],
                    ..AddressRules::default()
                },
                "localhost"
            )
            .await
                > Some(0)
        );
        assert_eq!(
            leads_to(
                AddressRules {
                    private_hosts: vec!["other".into()],
                    ..AddressRules::default()
                },
                "localhost"
            )
            .await,
            None
        );
    }
}
