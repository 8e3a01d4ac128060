//! A certificate authority, and a folder with files of certificates.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// A certificate authority.
pub(crate) struct Authority {
    /// Its certificate in PEM.
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates one with a key of its own.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// Returns a certificate for a host or an address, and its key.
    pub(crate) fn issues(&self, host: &str) -> (String, String) {
        self.sign(&CertificateParams::new(vec![host.to_owned()]).expect("parameters"))
    }

    /// Returns a certificate for a host or an address that was valid in the year 2020, and its key.
    #[cfg(feature = "nats")]
    pub(crate) fn issued_in_2020(&self, host: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A folder with files of certificates for a server and for its clients.
pub(crate) struct CertificateFiles {
    /// The authority of `ca.pem`.
    pub(crate) authority: Authority,
    folder: tempfile::TempDir,
}

impl CertificateFiles {
    /// Writes `ca.pem`, and `other-ca.pem` of an authority that has issued nothing.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::new();
        std::fs::write(folder.path().join("ca.pem"), &authority.certificate).expect("a file");
        std::fs::write(folder.path().join("other-ca.pem"), Authority::new().certificate).expect("a file");
        Self { authority, folder }
    }

    /// Returns the path of a file.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}
