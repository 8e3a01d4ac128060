//! `[cluster]`.

use super::*;

/// Returns the problems of a configuration with this section.
fn problems(storage: &str, section: &str) -> String {
    let text = format!(
        "[storage]\nurl = \"{storage}\"\n[cluster]\n{section}\n[agents.agent]\nname = \"main\"\nmodel = \"scripted:x\"\n"
    );
    Directory::with(&[("adjutant.toml", &text)]).complaints()
}

const POSTGRES: &str = "postgres://me@db/adjutant";

#[cfg(feature = "nats")]
#[test]
fn nats_needs_a_postgres() {
    let nats = "nats = \"nats://one\"";
    assert_eq!(problems(POSTGRES, nats), "");
    let said = problems("sqlite://adjutant.db", nats);
    assert!(
        said.contains("cluster.nats") && said.contains("needs a Postgres"),
        "{said}"
    );
}

#[cfg(not(feature = "nats"))]
#[test]
fn nats_needs_a_program_with_its_client() {
    let said = problems(POSTGRES, "nats = \"nats://one\"");
    assert!(
        said.contains("cluster.nats") && said.contains("was built without NATS"),
        "{said}"
    );
}

#[test]
fn a_url_that_is_none_of_nats_is_refused_without_its_password() {
    let said = problems(POSTGRES, "nats = \"http://me:s3cret@one\"");
    assert!(said.contains("must begin with `nats://`"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
}

#[test]
fn the_settings_of_nats_have_bounds() {
    for (setting, expected) in [
        ("nats_prefix = \"a b\"", "cluster.nats_prefix"),
        ("nats_prefix = \"a..b\"", "cluster.nats_prefix"),
        ("nats_prefix = \"a.*\"", "cluster.nats_prefix"),
        ("nats_stream_bytes = 5", "cluster.nats_stream_bytes"),
        ("nats_credentials = \"my.creds\"", "has no effect without `nats`"),
        ("nats_sslrootcert = \"ca.pem\"", "has no effect without `nats`"),
        ("live_interval_s = 0.001", "cluster.live_interval_s"),
    ] {
        let said = problems(POSTGRES, setting);
        assert!(said.contains(expected), "{setting}: {said}");
    }
    assert_eq!(
        problems(POSTGRES, "nats_prefix = \"my.servers-2\"\nnats_stream_bytes = 0"),
        ""
    );
}

#[cfg(feature = "nats")]
#[test]
fn certificates_for_nats_need_an_encrypted_connection_and_come_with_their_keys() {
    let all = "nats_sslrootcert = \"ca.pem\"\nnats_sslcert = \"me.crt\"\nnats_sslkey = \"me.key\"";
    assert_eq!(problems(POSTGRES, &format!("nats = \"tls://one\"\n{all}")), "");
    let said = problems(POSTGRES, &format!("nats = \"tls://one,nats://two\"\n{all}"));
    for name in ["nats_sslrootcert", "nats_sslcert", "nats_sslkey"] {
        assert!(said.contains(&format!("cluster.{name}")), "{said}");
    }
    assert!(said.contains("needs `tls://` in `nats`"), "{said}");
    let said = problems(POSTGRES, "nats = \"tls://one\"\nnats_sslcert = \"me.crt\"");
    assert!(said.contains("needs `nats_sslkey`"), "{said}");
    let said = problems(POSTGRES, "nats = \"tls://one\"\nnats_sslkey = \"me.key\"");
    assert!(said.contains("needs `nats_sslcert`"), "{said}");
}

#[test]
fn pieces_are_sent_more_often_over_nats() {
    let interval = |section: ClusterSection| section.live_interval();
    let nats = Some("nats://one".into());
    let over_nats = ClusterSection {
        nats,
        ..ClusterSection::default()
    };
    assert!(interval(over_nats.clone()) < interval(ClusterSection::default()));
    let chosen = ClusterSection {
        live_interval_s: Some(0.2),
        ..over_nats
    };
    assert_eq!(interval(chosen), std::time::Duration::from_millis(200));
}
