//! Encrypted connections to NATS: their certificates, and the reasons why they fail.

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use async_nats::{ConnectError, ConnectOptions};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError, RootCertStore};

use super::{NatsProblem, NatsSettings};

/// The alerts with which a server of TLS refuses a certificate, or that there is none.
const REFUSALS: [AlertDescription; 8] = [
    AlertDescription::AccessDenied,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateRequired,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::UnsupportedCertificate,
];
/// The errors of a connection that the other side closes. It may do so before its alert is read.
const CLOSED: [io::ErrorKind; 4] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::UnexpectedEof,
];

/// Adds the certificates of the settings to the options of a connection. The files are read at each connection, so that
/// they may be renewed.
pub(super) async fn with_certificates(
    settings: &NatsSettings,
    mut options: ConnectOptions,
) -> Result<ConnectOptions, NatsProblem> {
    // The client of NATS reads the files again, and does not say which of them is wrong.
    if let Some(path) = &settings.sslrootcert {
        check_authorities(path).await.map_err(|message| NatsProblem {
            message,
            advice: "correct `nats_sslrootcert` in [cluster]",
        })?;
        options = options.add_root_certificates(path.clone());
    }
    if let (Some(certificate), Some(key)) = (&settings.sslcert, &settings.sslkey) {
        check_pair(certificate, key).await.map_err(|message| NatsProblem {
            message,
            advice: "correct `nats_sslcert` and `nats_sslkey` in [cluster]",
        })?;
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    Ok(options)
}

/// Returns the reason why the file cannot be used as that of authorities.
async fn check_authorities(path: &Path) -> Result<(), String> {
    let mut store = RootCertStore::empty();
    for certificate in read_certificates(path).await? {
        let added = store.add(certificate);
        added.map_err(|error| format!("a certificate in {} cannot be used ({error})", path.display()))?;
    }
    Ok(())
}

/// Returns the reason why the certificate in one file cannot be used with the key in the other.
async fn check_pair(certificate: &Path, key: &Path) -> Result<(), String> {
    let chain = read_certificates(certificate).await?;
    let text = read(key).await?;
    // The error could quote the file.
    let private = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| format!("{} has no private key in PEM without a password", key.display()))?;
    let installed = CryptoProvider::get_default().cloned();
    let provider = installed.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
    let pair = CertifiedKey::from_der(chain, private, &provider);
    pair.map(drop).map_err(|error| {
        let certificate = certificate.display();
        format!(
            "the certificate in {certificate} cannot be used with the key in {} ({error})",
            key.display()
        )
    })
}

/// Returns the certificates in a file: one or more.
async fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path).await?;
    let certificates: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = certificates.ok().filter(|certificates| !certificates.is_empty());
    found.ok_or_else(|| format!("{} has no certificate in PEM", path.display()))
}

async fn read(path: &Path) -> Result<Vec<u8>, String> {
    let read = tokio::fs::read(path).await;
    read.map_err(|error| format!("{} cannot be read ({error})", path.display()))
}

/// Returns the problem of an encrypted connection; none if the error is about something else. The text is the same each
/// time: a new one is logged.
pub(super) fn problem_of(error: &ConnectError, settings: &NatsSettings) -> Option<NatsProblem> {
    let error = error.source()?.downcast_ref::<io::Error>()?;
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let (message, advice) = match cause {
        Some(rustls::Error::InvalidCertificate(error)) => certificate_problem(error),
        Some(rustls::Error::AlertReceived(alert)) if REFUSALS.contains(alert) => refusal(*alert, settings),
        Some(rustls::Error::InvalidMessage(_)) => (
            "it does not encrypt its connections".to_owned(),
            "give nats-server a certificate (`tls` in its configuration), or write `nats://` in `nats` in [cluster]",
        ),
        Some(error) => (
            format!("the connection cannot be encrypted ({error})"),
            "look at the log of nats-server",
        ),
        None if settings.servers.are_encrypted() && CLOSED.contains(&error.kind()) => (
            format!("it closes the connection ({error})"),
            "look at the log of nats-server; if it asks for a certificate, set `nats_sslcert` and `nats_sslkey` in [cluster]",
        ),
        None => return None,
    };
    Some(NatsProblem { message, advice })
}

/// Returns the problem of a certificate of NATS, and the advice.
fn certificate_problem(error: &CertificateError) -> (String, &'static str) {
    // An authority of the same name has signed with another key.
    if matches!(error, CertificateError::UnknownIssuer | CertificateError::BadSignature) {
        return (
            "its certificate is of an authority that is not trusted".to_owned(),
            "name the file with the authority of its certificate as `nats_sslrootcert` in [cluster]",
        );
    }
    if matches!(
        error,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
    ) {
        return (
            format!("its certificate is for another host ({error})"),
            "correct the host in `nats` in [cluster], or give NATS a certificate for this host",
        );
    }
    let renew = "give NATS a certificate that is valid now, or correct the clock of this machine";
    // Without the time of the check, which is another one each time.
    if matches!(
        error,
        CertificateError::Expired | CertificateError::ExpiredContext { .. }
    ) {
        return ("its certificate has expired".to_owned(), renew);
    }
    if matches!(
        error,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }
    ) {
        return ("its certificate is not valid yet".to_owned(), renew);
    }
    (
        format!("its certificate cannot be used ({error})"),
        "give NATS another certificate",
    )
}

/// Returns the problem of a NATS that refuses the certificate of this server, or that there is none, and the advice.
fn refusal(alert: AlertDescription, settings: &NatsSettings) -> (String, &'static str) {
    match settings.sslcert {
        None => (
            "it asks for a certificate of this server".to_owned(),
            "set `nats_sslcert` and `nats_sslkey` in [cluster]",
        ),
        Some(_) => (
            format!("it refuses the certificate of this server ({alert:?})"),
            "correct `nats_sslcert` in [cluster], or the authority in `tls` of nats-server (`ca_file`)",
        ),
    }
}
