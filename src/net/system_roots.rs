//! The certificate authorities of the system.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// Verifies certificates by the authorities of the system, which are read for the first certificate.
///
/// To read them takes as long as much of a start, and many servers ask only others in their own network, without TLS. A
/// system without authorities is no reason not to start, either.
#[derive(Debug)]
pub(super) struct SystemRoots {
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Result<Verifier, Error>>,
}

impl SystemRoots {
    pub(super) fn new(provider: Arc<CryptoProvider>) -> Self {
        let verifier = OnceLock::new();
        Self { provider, verifier }
    }

    fn verifier(&self) -> Result<&Verifier, Error> {
        let read = || Verifier::new(Arc::clone(&self.provider));
        self.verifier.get_or_init(read).as_ref().map_err(Clone::clone)
    }
}

impl ServerCertVerifier for SystemRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verifier()?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier()?.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier()?.verify_tls13_signature(message, certificate, signature)
    }

    /// The first message of a handshake names them, before there is a certificate.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots() -> SystemRoots {
        SystemRoots::new(Arc::new(rustls::crypto::ring::default_provider()))
    }

    #[test]
    fn the_schemes_of_signatures_are_those_of_the_verifier_and_need_no_authorities() {
        let roots = roots();
        let schemes = roots.supported_verify_schemes();
        assert!(roots.verifier.get().is_none(), "nothing is read");
        assert!(!schemes.is_empty());
        if let Ok(verifier) = roots.verifier() {
            assert_eq!(schemes, verifier.supported_verify_schemes());
        }
    }

    #[test]
    fn a_certificate_that_no_authority_has_signed_is_refused() {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let certificate = key.cert.der();
        let name = ServerName::try_from("localhost").expect("a name");
        let roots = roots();
        let verified = roots.verify_server_cert(certificate, &[], &name, &[], UnixTime::now());
        assert!(verified.is_err(), "{verified:?}");
        assert!(roots.verifier.get().is_some(), "the authorities are read");
    }
}
