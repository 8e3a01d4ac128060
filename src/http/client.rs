//! The identity of the client that sends a request.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::Extensions;
use axum::http::request::Parts;

/// A client, identified by the IP address of the connection.
///
/// Headers do not count, since anyone can forge them. So all clients behind one proxy are one client until there is
/// authentication. A /64 network of IPv6 addresses is one client, because one machine owns all of it. The loopback
/// addresses 127.0.0.1 and ::1 are the same client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(IpAddr);

impl ClientId {
    /// The client at this address.
    pub fn at(address: IpAddr) -> Self {
        /// The network part of an IPv6 address: its first 64 bits.
        const NETWORK: u128 = !0 << 64;
        match address.to_canonical() {
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Self(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) => Self(Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into()),
            ip @ IpAddr::V4(_) => Self(ip),
        }
    }

    /// The client that sent the request with these extensions. A request without a connection comes from this process.
    pub fn of(extensions: &Extensions) -> Self {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>();
        Self::at(peer.map_or(Ipv4Addr::LOCALHOST.into(), |ConnectInfo(peer)| peer.ip()))
    }

    /// A text that is the same for all requests of the client.
    pub fn key(&self) -> String {
        self.0.to_string()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ClientId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.extensions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> ClientId {
        ClientId::at(address.parse().expect("an address"))
    }

    #[test]
    fn a_client_is_an_address_or_a_network_of_ipv6_or_localhost() {
        assert_eq!(at("127.0.0.1"), at("::1"));
        assert_eq!(at("192.0.2.7"), at("::ffff:192.0.2.7"));
        assert_ne!(at("192.0.2.7"), at("192.0.2.8"));
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
    }
}
