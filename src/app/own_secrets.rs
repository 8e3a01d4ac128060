//! The secrets without which the server does not start: the keys of `[auth]`, the secrets of webhooks, the master keys.

use super::{credentials, encryption, webhooks};
use crate::config::{LoadedConfig, Problem};
use crate::definition::FieldPath;

/// Returns an error for each of these secrets that cannot be read. Nothing is connected to, and no program is run: the
/// master keys that a program prints are not read.
pub(super) async fn unreadable(loaded: &LoadedConfig) -> Vec<Problem> {
    let config = &loaded.config;
    let mut problems = vec![];
    let mut add = |field: FieldPath, read: anyhow::Result<()>| {
        let Err(error) = read else { return };
        problems.push(Problem {
            field: field.to_string(),
            ..Problem::in_file(loaded.source.clone(), format!("{error:#}"))
        });
    };
    let auth = FieldPath::of(["auth"]);
    for (at, key) in config.auth.iter().flat_map(|auth| &auth.keys).enumerate() {
        add(auth.then("keys").then(at), credentials::configured_key(key).map(drop));
    }
    for (at, issuer) in config.auth.iter().flat_map(|auth| &auth.jwt).enumerate() {
        add(auth.then("jwt").then(at), credentials::issuer(issuer).map(drop));
    }
    add(FieldPath::of(["webhooks"]), webhooks(config).map(drop));
    let encryption = config.encryption.as_ref();
    let in_file = encryption.filter(|section| section.key_file.is_some());
    let keys = encryption::master_keys(in_file).await;
    add(FieldPath::of(["encryption"]), keys.map(drop));
    problems
}
