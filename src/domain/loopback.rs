//! The names and addresses of this machine.

use std::net::IpAddr;

use url::{Host, Url};

/// Returns whether a host is this machine.
pub fn is_loopback(host: Host<&str>) -> bool {
    match host {
        Host::Domain(name) => is_loopback_name(name),
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => IpAddr::V6(ip).to_canonical().is_loopback(),
    }
}

/// Returns whether a name means this machine (RFC 6761, 6.3).
pub fn is_loopback_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// Returns whether no other machine can read the requests to an address: they are encrypted, or stay on this machine.
pub fn is_protected(address: &Url) -> bool {
    address.scheme() == "https" || address.host().is_some_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_protected_by_encryption_or_on_this_machine() {
        let table = [
            ("https://example.org", true),
            ("http://example.org", false),
            ("http://localhost:8123", true),
            ("http://api.localhost", true),
            ("http://localhost.example.org", false),
            ("http://127.0.0.2", true),
            ("http://10.0.0.1", false),
            ("http://[::1]:80", true),
            ("http://[::ffff:127.0.0.1]", true),
        ];
        for (address, expected) in table {
            let address = Url::parse(address).expect("an address");
            assert_eq!(is_protected(&address), expected, "{address}");
        }
    }
}
