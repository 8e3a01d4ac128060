//! Network clients: HTTP clients with one TLS configuration, their headers, the texts of their errors, the pauses
//! that servers ask for, the parser of event streams, and the SSRF guard.

mod headers;
mod retry_after;
pub mod sse;
pub mod ssrf;
mod system_roots;

use std::error::Error;
use std::sync::{Arc, OnceLock};

use reqwest::{ClientBuilder, Response};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;

pub use headers::secret_headers;
pub use retry_after::retry_after;
use system_roots::SystemRoots;

/// A builder of an HTTP client that uses rustls with the cryptography of `ring`.
///
/// `ring` compiles within seconds on a small machine. A program that embeds the server keeps the provider that it
/// installed before. All clients have the same certificate authorities, those of the [system](system_roots).
pub fn client_builder() -> ClientBuilder {
    static TLS: OnceLock<Option<ClientConfig>> = OnceLock::new();
    let builder = reqwest::Client::builder();
    match TLS.get_or_init(|| tls().ok()) {
        Some(tls) => {
            let mut tls = tls.clone();
            // Clients do not share TLS sessions.
            tls.resumption = Resumption::default();
            builder.tls_backend_preconfigured(tls)
        }
        // Building the client reports the error.
        None => builder,
    }
}

/// Returns the configuration that reqwest makes by default.
fn tls() -> Result<ClientConfig, rustls::Error> {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let installed = CryptoProvider::get_default().cloned();
    let provider = installed.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
    let verifier = SystemRoots::new(Arc::clone(&provider));
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

/// Reads the body of a response.
///
/// # Errors
/// A text for people: the body is larger than `max_bytes`, or breaks off.
pub async fn read_bounded(mut response: Response, max_bytes: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| describe_error(&error))? {
        if bytes.len() + chunk.len() > max_bytes {
            return Err(format!("the response is larger than {max_bytes} bytes"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Returns whether the system gave the connection of a request up, since the other side confirmed nothing for too long. It is no time-out
/// of the request, although [`reqwest::Error::is_timeout`] says so.
pub fn was_given_up(error: &reqwest::Error) -> bool {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.raw_os_error().is_some())
}

/// Returns the reason why a request failed, without its URL, which may contain a secret.
pub fn describe_error(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".to_owned();
    }
    let deepest = causes(error).last();
    deepest.map_or_else(|| "no reason is known".to_owned(), ToString::to_string)
}

/// Returns the causes of an error, the deepest one last.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}
