//! A certificate authority.

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
