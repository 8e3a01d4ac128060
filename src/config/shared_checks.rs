//! The checks of settings that the server and single tenants have.

use std::net::IpAddr;

use secrecy::{ExposeSecret, SecretString};

use super::ProviderSection;
use crate::definition::words::{address_problem, is_word, timeout_problem};
use crate::definition::{Diagnostic, FieldPath, MOST_RETRIES, check_headers};

/// The shortest interval at which expired data is looked for, in minutes.
pub(super) const MIN_SWEEP_MINUTES: f64 = 0.002;

/// Returns what is wrong with the address and the key of a provider; `field` is that of its section.
pub(super) fn provider_problems(field: &FieldPath, provider: &ProviderSection) -> Vec<Diagnostic> {
    let mut findings = vec![];
    let mut add = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
    if let Some(problem) = provider.base_url.as_deref().and_then(address_problem) {
        add(field.then("base_url"), problem);
    }
    let windows = provider.max_input_tokens_by_model.iter();
    let windows = windows.map(|(model, window)| (field.then("max_input_tokens_by_model").then(model), *window));
    let of_all = provider
        .max_input_tokens
        .map(|window| (field.then("max_input_tokens"), window));
    for (field, _) in windows.chain(of_all).filter(|(_, window)| *window == 0) {
        add(field, "must be a whole number of at least 1".to_owned());
    }
    if provider.max_retries.is_some_and(|retries| retries > MOST_RETRIES) {
        add(field.then("max_retries"), format!("must be at most {MOST_RETRIES}"));
    }
    let times = [
        ("first_token_s", provider.first_token_s),
        ("between_tokens_s", provider.between_tokens_s),
    ];
    for (name, time) in times {
        if let Some(problem) = time.and_then(|time| timeout_problem(time, 86_400.0)) {
            add(field.then(name), problem);
        }
    }
    let keys = [
        provider.api_key_env.is_some(),
        provider.api_key_file.is_some(),
        provider.api_key.is_some(),
    ];
    if keys.into_iter().filter(|given| *given).count() > 1 {
        let message = "only one of `api_key_env`, `api_key_file` and `api_key` may be given";
        add(field.clone(), message.to_owned());
    }
    let is_blank = |key: &SecretString| key.expose_secret().trim().is_empty();
    if provider.api_key.as_ref().is_some_and(is_blank) {
        add(
            field.then("api_key"),
            "must not be blank; leave it out for none".to_owned(),
        );
    }
    if provider
        .api_key_env
        .as_deref()
        .is_some_and(|name| !is_word(name, 256, ""))
    {
        add(
            field.then("api_key_env"),
            "must be the name of an environment variable".to_owned(),
        );
    }
    findings.extend(check_headers(&field.then("headers"), &provider.headers));
    findings
}

/// Returns the reason why a text, which is not `*`, is no name of a host, and stands for none below a domain.
pub(super) fn host_problem(name: &str) -> Option<String> {
    let host = name.strip_prefix("*.").unwrap_or(name);
    let is_host = url::Host::parse(host).is_ok() || host.parse::<IpAddr>().is_ok();
    let message = "must be a name without a port, as in `agents.example.org`, `*.example.org` or `*`";
    (!is_host).then(|| format!("`{name}` {message}"))
}

/// Returns the reason why a text, which is not `*`, is neither an origin nor `loopback`.
pub(super) fn origin_problem(origin: &str) -> Option<String> {
    let is_origin = address_problem(origin).is_none() && !origin.ends_with('/');
    let message = "must be an origin, as in `https://chat.example.org`, `loopback` or `*`";
    (origin != "loopback" && !is_origin).then(|| format!("`{origin}` {message}"))
}
