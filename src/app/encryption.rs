//! The master keys of the database, read from a file or printed by a program.

use std::path::Path;

use anyhow::{Context, anyhow};
use secrecy::zeroize::Zeroizing;

use crate::config::{EncryptionSection, output_of, read_secrets};
use crate::db::MasterKeys;

/// Reads the keys; none without the section.
pub(super) async fn master_keys(section: Option<&EncryptionSection>) -> anyhow::Result<Option<MasterKeys>> {
    let Some(section) = section else { return Ok(None) };
    let source = match &section.key_file {
        Some(path) => path.display().to_string(),
        None => section.key_command.first().cloned().unwrap_or_default(),
    };
    let text = match &section.key_file {
        Some(path) => read_file(path).await,
        None => output_of(&section.key_command, section.timeout())
            .await
            .map_err(|reason| anyhow!(reason)),
    };
    let text = text.with_context(|| format!("could not get the keys of [encryption] from {source}"))?;
    let keys =
        MasterKeys::read(&text).with_context(|| format!("the keys of [encryption] from {source} are invalid"))?;
    Ok(Some(keys))
}

async fn read_file(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let file = tokio::fs::File::open(path).await?;
    read_secrets(file).await.map_err(|reason| anyhow!(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

    fn command(script: &str) -> EncryptionSection {
        EncryptionSection {
            key_command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            key_command_s: 20.0,
            ..EncryptionSection::default()
        }
    }

    async fn names(section: &EncryptionSection) -> Result<Vec<String>, String> {
        let keys = master_keys(Some(section)).await.map_err(|error| format!("{error:#}"))?;
        Ok(keys.iter().flat_map(MasterKeys::names).map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn keys_come_from_a_file_or_a_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        std::fs::write(&path, format!("2027:{KEY}\n2026:{KEY}\n")).expect("a file");
        let in_file = EncryptionSection {
            key_file: Some(path),
            ..EncryptionSection::default()
        };
        assert_eq!(names(&in_file).await, Ok(vec!["2027".to_owned(), "2026".to_owned()]));
        let printed = command(&format!("echo kms:{KEY}"));
        assert_eq!(names(&printed).await, Ok(vec!["kms".to_owned()]));
        assert!(master_keys(None).await.expect("none").is_none());
    }

    #[tokio::test]
    async fn errors_say_where_the_keys_come_from_and_never_show_them() {
        for (section, reason) in [
            (command("echo x; exit 3"), "exit status: 3"),
            (command("echo kms:c2hvcnQ="), "line 1"),
            (command("yes"), "more than 65536 bytes"),
            (
                EncryptionSection {
                    key_command: vec!["/no/such/program".to_owned()],
                    ..EncryptionSection::default()
                },
                "/no/such/program",
            ),
            (
                EncryptionSection {
                    key_command_s: 0.05,
                    ..command("exec sleep 60")
                },
                "did not end within 0.05 s",
            ),
        ] {
            let error = names(&section).await.expect_err(reason);
            assert!(error.contains(reason) && !error.contains("c2hvcnQ"), "{error}");
        }
    }
}
