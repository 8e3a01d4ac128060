use super::*;

/// Returns the problems of a configuration with these lines in and below `[auth]`.
fn auth_complaints(lines: &str) -> String {
    complaints(&format!("[agents.a]\nmodel = \"scripted:x\"\n[auth]\n{lines}"))
}

fn key(more: &str) -> String {
    auth_complaints(&format!("[[auth.keys]]\nname = \"ops\"\n{more}"))
}

fn issuer(more: &str) -> String {
    let lines = "[[auth.jwt]]\nissuer = \"https://login.example.org\"\naudience = [\"agents\"]\n";
    auth_complaints(&format!("{lines}{more}"))
}

#[test]
fn with_the_section_the_server_may_listen_on_public_addresses() {
    let listening = |more: &str| {
        let text = format!("[server]\nlisten = \"0.0.0.0:8123\"\n{more}\n[agents.a]\nmodel = \"scripted:x\"\n");
        complaints(&text)
    };
    assert_eq!(listening("[auth]"), "");
    assert!(listening("").contains("Add a section [auth]"));
}

#[test]
fn all_ways_side_by_side_are_valid() {
    let text = "\
        [[auth.keys]]\n\
        name = \"ops\"\n\
        key_env = \"ADJUTANT_OPS_KEY\"\n\
        tenant = \"acme\"\n\
        roles = [\"admin\", \"developer\"]\n\
        scopes = [\"threads:*\", \"keys:read\"]\n\
        expires_at = 2027-01-31T00:00:00Z\n\
        [[auth.jwt]]\n\
        issuer = \"https://login.example.org\"\n\
        audience = [\"agents\"]\n\
        tenant_claim = \"org\"\n\
        roles_claim = \"groups\"\n\
        role_words = { Chiefs = \"admin\" }\n\
        [auth.hook]\n\
        url = \"http://127.0.0.1:9000/who\"\n";
    assert_eq!(auth_complaints(text), "");
}

#[test]
fn mistakes_in_keys_are_named_with_their_place() {
    let file = "[agents.a]\nmodel = \"scripted:x\"\n[[auth.keys]]\nname = \"x\"\nkey_env = \"A\"\nroles = [\"root\"]\n";
    assert!(complaints(file).starts_with("adjutant.toml:6:"), "{}", complaints(file));
    for (more, expected) in [
        ("", "must have a `key_env` or a `key_file`"),
        ("key_env = \"A\"\nkey_file = \"b\"", "and not both"),
        (
            "key_env = \"A B\"",
            "auth.keys[0].key_env: must be the name of an environment variable",
        ),
        (
            "key_env = \"A\"\ntenant = \"Acme\"",
            "auth.keys[0].tenant: must be the name of a tenant",
        ),
        (
            "key_env = \"A\"\nscopes = [\"threads:fly\"]",
            "auth.keys[0].scopes: is no permission",
        ),
        (
            "key_env = \"A\"\nroles = []",
            "auth.keys[0].roles: must have at least one role",
        ),
        (
            "key_env = \"A\"\nexpires_at = \"soon\"",
            "auth.keys[0].expires_at: must be a time",
        ),
        ("key_env = \"A\"\nkey = \"inline\"", "unknown key"),
    ] {
        assert!(key(more).contains(expected), "{more}: {}", key(more));
    }
    let twice = auth_complaints(&"[[auth.keys]]\nname = \"x\"\nkey_env = \"A\"\n".repeat(2));
    assert!(
        twice.contains("auth.keys[1].name: `x` is the name of another key"),
        "{twice}"
    );
}

#[test]
fn mistakes_in_issuers_are_named() {
    for (more, expected) in [
        ("algorithms = [\"none\"]", "algorithms"),
        ("algorithms = []", "must have at least one algorithm"),
        (
            "algorithms = [\"HS256\"]",
            "`HS256` needs a `secret_env` or a `secret_file`",
        ),
        ("secret_env = \"A\"", "auth.jwt[0].secret_env: is for `HS256` only"),
        ("leeway_s = 1000", "must be from 0 to 300 seconds"),
        (
            "jwks_url = \"http://keys.example.org\"",
            "auth.jwt[0].jwks_url: must begin with https://",
        ),
        ("tenant = \"a\"\ntenant_claim = \"org\"", "cannot both be given"),
        ("role_words = { A = \"admin\" }", "needs `roles_claim`"),
        ("user_claim = \" \"", "must be the name of a claim"),
    ] {
        assert!(issuer(more).contains(expected), "{more}: {}", issuer(more));
    }
    let plain = "[[auth.jwt]]\nissuer = \"http://login.example.org\"\naudience = [\"agents\"]\n";
    assert!(auth_complaints(plain).contains("auth.jwt[0].issuer: must begin with https://"));
    let without = "[[auth.jwt]]\nissuer = \"https://login.example.org\"\naudience = []\n";
    assert!(auth_complaints(without).contains("must name at least one audience"));
}

#[test]
fn mistakes_in_the_hook_are_named() {
    for (lines, expected) in [
        ("url = \"who\"", "auth.hook.url: is no address"),
        (
            "url = \"http://a/\"\ntimeout_s = 0",
            "auth.hook.timeout_s: must be from 0.01 to 30 seconds",
        ),
        (
            "url = \"http://a/\"\nheaders = []",
            "auth.hook.headers: must name 1 to 32 headers",
        ),
        (
            "url = \"http://a/\"\nheaders = [\"a b\"]",
            "auth.hook.headers[0]: `a b` must be the name of a header",
        ),
    ] {
        let found = auth_complaints(&format!("[auth.hook]\n{lines}"));
        assert!(found.contains(expected), "{lines}: {found}");
    }
}

#[test]
fn a_section_that_lets_nobody_in_is_refused() {
    assert!(auth_complaints("api_keys = false").contains("accepts nobody"));
    assert_eq!(auth_complaints(""), "");
}

#[test]
fn a_build_without_policies_refuses_them_by_the_name_of_the_feature() {
    let mut section = PoliciesSection {
        files: vec!["policies/*.cedar".to_owned()],
        ..PoliciesSection::default()
    };
    let findings = section.load_if(Path::new("."), false);
    let [only] = findings.of_settings.as_slice() else {
        panic!("one finding")
    };
    assert_eq!(only.field.to_string(), "auth.policies.files");
    assert!(
        only.message.contains("the cargo feature `policies`"),
        "{}",
        only.message
    );
    assert!(section.loaded.is_none() && findings.in_files.is_empty());
    let unused = PoliciesSection::default().load_if(Path::new("."), false);
    assert!(unused.of_settings.is_empty());
}

/// Returns the problems of a configuration with these policies.
#[cfg(feature = "policies")]
fn policy_complaints(files: &str, policies: &str) -> String {
    let text = format!("[agents.a]\nmodel = \"scripted:x\"\n[auth.policies]\nfiles = {files}\n");
    Directory::with(&[("adjutant.toml", &text), ("policies/one.cedar", policies)]).complaints()
}

#[cfg(feature = "policies")]
#[test]
fn mistakes_in_policies_are_named_with_their_place() {
    let good = "permit(\n  principal,\n  action == Action::\"threads:read\",\n  resource\n);\n";
    assert_eq!(policy_complaints("[\"policies/*.cedar\"]", good), "");
    let found = policy_complaints("[\"policies/one.cedar\"]", &good.replace("threads:read", "threads:fly"));
    assert!(found.starts_with("policies/one.cedar:3:13: error: "), "{found}");
    assert!(found.contains("threads:fly"), "{found}");
    let found = policy_complaints("[\"policies/one.cedar\"]", "permit(principal, action resource);");
    assert!(found.starts_with("policies/one.cedar:1:26: error: "), "{found}");
    let unfit = "permit(principal, action, resource)\nwhen { principal.salary > 3 };";
    let found = policy_complaints("[\"policies/one.cedar\"]", unfit);
    assert!(found.starts_with("policies/one.cedar:2:8: error: "), "{found}");
    assert!(found.contains("salary"), "{found}");
    let deep = format!(
        "permit(principal, action, resource) when {{\n{}true }};",
        "(".repeat(300)
    );
    let found = policy_complaints("[\"policies/one.cedar\"]", &deep);
    assert!(found.starts_with("policies/one.cedar:2:"), "{found}");
    assert!(found.contains("nests deeper than 256 levels"), "{found}");
}

#[cfg(feature = "policies")]
#[test]
fn files_of_policies_must_exist() {
    let good = "permit(principal, action == Action::\"threads:read\", resource);";
    for files in [
        "[\"policies/two.cedar\"]",
        "[\"policies/*.txt\"]",
        "[\"nowhere/*.cedar\"]",
    ] {
        let found = policy_complaints(files, good);
        assert!(found.contains("auth.policies.files[0]"), "{files}: {found}");
    }
}
