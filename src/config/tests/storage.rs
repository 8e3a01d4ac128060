//! `[storage]`.

use super::*;

/// Returns the problems of a configuration with these lines in the section.
fn problems(lines: &str) -> String {
    complaints(&format!(
        "[storage]\n{lines}\n[agents.agent]\nname = \"main\"\nmodel = \"scripted:x\"\n"
    ))
}

#[test]
fn several_hosts_of_postgres_may_be_listed() {
    let url = "url = \"postgres://me:s3cret@one:5432,two:5433/adjutant?target_session_attrs=read-write\"";
    assert_eq!(problems(url), "");
    let pooled =
        "url = \"postgres:///adjutant?host=one,two&port=6432\"\ndirect_url = \"postgres://three,four/adjutant\"";
    assert_eq!(problems(pooled), "");
}

#[test]
fn a_list_of_hosts_that_cannot_be_used_is_refused_without_its_password() {
    for (lines, field, expected) in [
        (
            "url = \"postgres://me:s3cret@one,two/a?target_session_attrs=standby\"",
            "storage.url",
            "since the server writes",
        ),
        (
            "url = \"postgres://me:s3cret@one:x,two/a\"",
            "storage.url",
            "ports from 1 to 65535",
        ),
        (
            "url = \"postgres://one/a\"\ndirect_url = \"postgres://me:s3cret@one,,two/a\"",
            "storage.direct_url",
            "a host before and behind each comma",
        ),
    ] {
        let said = problems(lines);
        assert!(said.contains(field) && said.contains(expected), "{lines}: {said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[test]
fn a_list_of_hosts_is_printed_without_its_password() {
    for (url, printed) in [
        (
            "postgres://me:s3cret@one:5432,two:5433/a?password=s3cret",
            "postgres://me:***@one:5432,two:5433/a",
        ),
        (
            "postgres://me:s3cret@one,two/a?password=s3cret",
            "postgres://me:***@one,two/a",
        ),
        ("postgres://me:s3cret@one:s3cret,two/a", "postgres:…"),
    ] {
        let url = DatabaseUrl::from(url);
        assert_eq!(url.to_string(), printed);
        assert!(!format!("{url:?}").contains("s3cret"));
    }
}
