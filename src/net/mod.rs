//! Network clients: HTTP clients with one TLS configuration, the parser of event streams, and the SSRF guard.

pub mod sse;
pub mod ssrf;

use std::sync::Once;

use reqwest::ClientBuilder;

/// A builder of an HTTP client that uses rustls with the cryptography of `ring`.
///
/// `ring` compiles within seconds on a small machine. A program that embeds the server keeps the provider that it
/// installed before.
pub fn client_builder() -> ClientBuilder {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // An error means that a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder()
}
