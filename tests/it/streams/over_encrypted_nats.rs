//! Pieces between servers over a NATS that encrypts its connections.

use super::over_nats::{a_piece_travels, checks};
use crate::support::authority::{Authority, CertificateFiles};
use crate::support::nats::{LOGIN, Nats};
use crate::support::{TestServer, on_postgres, script};

on_postgres! {
    pieces_travel_over_a_nats_whose_authority_is_named,
    a_certificate_is_presented_to_a_nats_that_asks_for_one,
    a_nats_that_cannot_be_trusted_is_refused_with_the_reason,
    files_that_hold_no_certificates_are_named,
    a_nats_that_cannot_be_trusted_is_named_at_the_start_and_hides_the_password,
}

async fn pieces_travel_over_a_nats_whose_authority_is_named(server: TestServer) {
    let files = CertificateFiles::new();
    files.has_pair("server", &files.authority.issues("127.0.0.1"));
    let Some(nats) = Nats::starts_with(&files.tls("server", "")).await else {
        return;
    };
    // Relative to the configuration.
    server.file_is_written("tls/ca.pem", &files.authority.certificate);
    let section = format!(
        "[cluster]\nnats = \"tls://{}\"\nnats_sslrootcert = \"tls/ca.pem\"\n",
        nats.address()
    );
    server.is_configured_with(&section).await;
    a_piece_travels(&server).await;
}

async fn a_certificate_is_presented_to_a_nats_that_asks_for_one(server: TestServer) {
    let files = CertificateFiles::new();
    files.has_pair("server", &files.authority.issues("127.0.0.1"));
    files.has_pair("client", &files.authority.issues("adjutant"));
    files.has_pair("stranger", &Authority::new().issues("adjutant"));
    let asks = format!("  ca_file: \"{}\"\n  verify: true\n", files.path("ca.pem"));
    let Some(nats) = Nats::starts_with(&files.tls("server", &asks)).await else {
        return;
    };
    let base = std::fs::read_to_string(server.configuration()).expect("a configuration");
    let without = files.section(&nats, "ca.pem");
    let with = |name: &str| {
        let [certificate, key] = ["crt", "key"].map(|kind| files.path(&format!("{name}.{kind}")));
        format!("{without}nats_sslcert = \"{certificate}\"\nnats_sslkey = \"{key}\"\n")
    };
    let (found, _) = checks(&server, &base, &without);
    assert_eq!(found["status"], "fail", "{found}");
    let advice = found["advice"].as_str().expect("advice");
    assert!(
        advice.contains("set `nats_sslcert` and `nats_sslkey` in [cluster]"),
        "{found}"
    );
    let (found, _) = checks(&server, &base, &with("stranger"));
    assert_eq!(found["status"], "fail", "{found}");
    std::fs::write(server.configuration(), &base).expect("it can change");
    server.is_configured_with(&with("client")).await;
    a_piece_travels(&server).await;
}

async fn a_nats_that_cannot_be_trusted_is_refused_with_the_reason(server: TestServer) {
    let files = CertificateFiles::new();
    files.has_pair("server", &files.authority.issues("127.0.0.1"));
    files.has_pair("old", &files.authority.issued_in_2020("127.0.0.1"));
    files.has_pair("elsewhere", &files.authority.issues("nats.example.org"));
    let Some(good) = Nats::starts_with(&files.tls("server", "")).await else {
        return;
    };
    let Some(old) = Nats::starts_with(&files.tls("old", "")).await else {
        return;
    };
    let Some(elsewhere) = Nats::starts_with(&files.tls("elsewhere", "")).await else {
        return;
    };
    let Some(plain) = Nats::starts().await else { return };
    let base = std::fs::read_to_string(server.configuration()).expect("a configuration");
    let (found, _) = checks(&server, &base, &files.section(&good, "ca.pem"));
    assert_eq!(found["status"], "ok", "{found}");
    let of_the_system = format!("[cluster]\nnats = \"tls://{}\"\n", good.address());
    for (section, message, advice) in [
        (
            files.section(&good, "other-ca.pem"),
            "of an authority that is not trusted",
            "`nats_sslrootcert`",
        ),
        (
            of_the_system,
            "of an authority that is not trusted",
            "`nats_sslrootcert`",
        ),
        (files.section(&old, "ca.pem"), "has expired", "valid now"),
        (
            files.section(&elsewhere, "ca.pem"),
            "for another host (certificate not valid for name \"127.0.0.1\"",
            "correct the host in `nats`",
        ),
        (
            files.section(&plain, "ca.pem"),
            "does not encrypt its connections",
            "give nats-server a certificate",
        ),
    ] {
        let (found, _) = checks(&server, &base, &section);
        assert_eq!(found["status"], "fail", "{section}: {found}");
        let says = |field: &str, part: &str| found[field].as_str().is_some_and(|text| text.contains(part));
        assert!(says("message", message), "{section}: {found}");
        assert!(says("advice", advice), "{section}: {found}");
    }
}

async fn files_that_hold_no_certificates_are_named(server: TestServer) {
    let files = CertificateFiles::new();
    files.has_pair("server", &files.authority.issues("127.0.0.1"));
    files.has_pair("client", &files.authority.issues("adjutant"));
    let Some(nats) = Nats::starts_with(&files.tls("server", "")).await else {
        return;
    };
    let base = std::fs::read_to_string(server.configuration()).expect("a configuration");
    let section = files.section(&nats, "ca.pem");
    let with = |certificate: &str, key: &str| {
        let [certificate, key] = [certificate, key].map(|name| files.path(name));
        format!("{section}nats_sslcert = \"{certificate}\"\nnats_sslkey = \"{key}\"\n")
    };
    for (section, message) in [
        (files.section(&nats, "none.pem"), "none.pem cannot be read"),
        (
            files.section(&nats, "server.key"),
            "server.key has no certificate in PEM",
        ),
        (with("client.key", "client.key"), "client.key has no certificate in PEM"),
        (with("client.crt", "client.crt"), "client.crt has no private key in PEM"),
        (with("client.crt", "server.key"), "cannot be used with the key in"),
    ] {
        let (found, report) = checks(&server, &base, &section);
        assert_eq!(found["status"], "fail", "{section}: {found}");
        assert!(
            found["message"].as_str().is_some_and(|text| text.contains(message)),
            "{section}: {found}"
        );
        assert!(!report.contains("PRIVATE KEY"), "{report}");
    }
}

async fn a_nats_that_cannot_be_trusted_is_named_at_the_start_and_hides_the_password(server: TestServer) {
    let files = CertificateFiles::new();
    files.has_pair("server", &files.authority.issues("127.0.0.1"));
    let Some(nats) = Nats::starts_with(&format!("{LOGIN}{}", files.tls("server", ""))).await else {
        return;
    };
    let address = nats.address();
    server.file_is_written("ca.pem", &Authority::new().certificate);
    let section = format!("[cluster]\nnats = \"tls://me:s3cret@{address}\"\nnats_sslrootcert = \"ca.pem\"\n");
    server.is_configured_with(&section).await;
    server
        .moves_into_a_process_that_logs("debug,async_nats=trace,rustls=trace")
        .await;
    server.log().gets_one_of(&["NATS cannot be used"]).await;
    let text = server.log().text();
    let said = text.lines().find(|line| line.contains("NATS cannot be used"));
    let said = said.expect("a line");
    assert!(said.contains(&format!("tls://{address}")), "{said}");
    assert!(said.contains("of an authority that is not trusted"), "{said}");
    // The server serves meanwhile, and connects once the file has the right authority.
    let values = server.human("plain").await.says(script().says("done")).await;
    assert_eq!(values["messages"][1]["content"], "done");
    server.file_is_written("ca.pem", &files.authority.certificate);
    server.log().gets_one_of(&["connected to NATS"]).await;
    assert!(!server.log().text().contains("s3cret"), "{}", server.log().text());
}
