//! What clients of other servers share: one place where HTTP clients begin, so that all have the same TLS, and the reader
//! of event streams.

pub mod sse;

use std::sync::Once;

use reqwest::ClientBuilder;

/// A builder of an HTTP client whose TLS is rustls with the cryptography of `ring`.
///
/// `ring` is the provider that compiles within seconds on a small machine. A program that embeds the server and has
/// installed another provider before keeps its own.
pub fn client_builder() -> ClientBuilder {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // An error says that there is a provider already, which then is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    reqwest::Client::builder()
}
