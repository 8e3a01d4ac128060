//! The settings of the connection to NATS.

use std::path::PathBuf;

use crate::domain::nats::NatsServers;

/// The settings of the connection to NATS.
#[derive(Debug, Clone)]
pub struct NatsSettings {
    /// The servers.
    pub servers: NatsServers,
    /// The file with the credentials of a user.
    pub credentials: Option<PathBuf>,
    /// The file with the authorities of the certificates of NATS; none for those of the system.
    pub sslrootcert: Option<PathBuf>,
    /// The file with the certificate of this server.
    pub sslcert: Option<PathBuf>,
    /// The file with the key of that certificate.
    pub sslkey: Option<PathBuf>,
    /// The first part of all subjects.
    pub prefix: String,
    /// The memory of the stream, in bytes; 0 for no stream.
    pub stream_bytes: u32,
}
