//! The identity of the client that sends a request.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::Extensions;
use axum::http::request::Parts;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::domain::access::Ownership;
use crate::domain::identity::Identity;

/// A client: a user of a tenant, or, without authentication, the IP address of the connection.
///
/// Headers with addresses do not count, since anyone can forge them. So without authentication all clients behind one
/// proxy are one client. A /64 network of IPv6 addresses is one client, because one machine owns all of it. The
/// loopback addresses 127.0.0.1 and ::1 are the same client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(ClientKey);

/// The key of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ClientKey {
    Address(IpAddr),
    /// A user, by the beginning of the digest of tenant and identity.
    User(Uuid),
}

impl ClientId {
    /// The client at this address.
    pub fn at(address: IpAddr) -> Self {
        /// The network part of an IPv6 address: its first 64 bits.
        const NETWORK: u128 = !0 << 64;
        Self(ClientKey::Address(match address.to_canonical() {
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
            ip @ IpAddr::V4(_) => ip,
        }))
    }

    /// The client that is this user, from whatever address. All API keys of a user are one client.
    pub fn of_owner(user: &Ownership) -> Self {
        // Names have no control characters, so two users never have the same text.
        let text = Sha256::new_with_prefix(user.tenant.as_str()).chain_update("\n");
        let digest: [u8; 32] = text.chain_update(user.owner.as_str()).finalize().into();
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        Self(ClientKey::User(Uuid::from_bytes(first)))
    }

    /// The client that sent the request with these extensions. A request without a connection comes from this process.
    pub fn of(extensions: &Extensions) -> Self {
        let identity = extensions.get::<Arc<Identity>>();
        if let Some(identity) = identity.filter(|identity| identity.credential.is_verified()) {
            return Self::of_owner(&Ownership::of(identity));
        }
        Self::at(peer_address(extensions).unwrap_or(Ipv4Addr::LOCALHOST.into()))
    }

    /// A text that is the same for all requests of the client.
    pub fn key(&self) -> String {
        match self.0 {
            ClientKey::Address(address) => address.to_string(),
            ClientKey::User(user) => format!("user {user}"),
        }
    }
}

/// Returns the address at the other end of the connection; none for a request of this process.
pub(super) fn peer_address(extensions: &Extensions) -> Option<IpAddr> {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>();
    peer.map(|ConnectInfo(peer)| peer.ip().to_canonical())
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
    use crate::domain::identity::{Credential, Tenant, UserId};

    fn at(address: &str) -> ClientId {
        ClientId::at(address.parse().expect("an address"))
    }

    #[test]
    fn a_user_is_one_client_from_everywhere() {
        let of = |tenant: &str, user: &str| {
            let mut extensions = Extensions::new();
            extensions.insert(Arc::new(Identity {
                tenant: Tenant::stored(tenant.to_owned()),
                user: UserId::stored(user.to_owned()),
                credential: Credential::Hook,
                ..Identity::unauthenticated()
            }));
            ClientId::of(&extensions)
        };
        assert_eq!(of("acme", "ann"), of("acme", "ann"));
        assert_ne!(of("acme", "ann"), of("acme", "bob"));
        assert_ne!(of("acme", "ann"), of("other", "ann"));
        assert_ne!(of("acme", "ann").key(), of("other", "ann").key());
    }

    #[test]
    fn without_authentication_the_address_counts() {
        let mut extensions = Extensions::new();
        extensions.insert(Arc::new(Identity::unauthenticated()));
        assert_eq!(ClientId::of(&extensions), at("127.0.0.1"));
    }

    #[test]
    fn a_client_is_an_ipv4_address_an_ipv6_network_or_localhost() {
        assert_eq!(at("127.0.0.1"), at("::1"));
        assert_eq!(at("192.0.2.7"), at("::ffff:192.0.2.7"));
        assert_ne!(at("192.0.2.7"), at("192.0.2.8"));
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
    }
}
