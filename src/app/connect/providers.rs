//! The checks of model providers: their keys, and whether they have the models that agents use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use reqwest::Client;

use super::super::builder::Prepared;
use super::{CheckOutcome, PlannedCheck, keys};
use crate::domain::suggestion::nearest;
use crate::model::providers::{ListingError, ProviderListing};

/// Returns one check for each provider that agents or the index of the Store use.
pub(super) fn plan(prepared: &Prepared, client: &Client) -> Vec<PlannedCheck> {
    let config = &prepared.loaded().config;
    let providers = Arc::new(super::super::providers(config).with_own(prepared.registered().sources()));
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for model in keys::used_models(config) {
        if let Some(provider) = providers.provider_of(&model.name) {
            let name = model.name.split_once(':').map_or(model.name.as_str(), |(_, name)| name);
            used.entry(provider.to_owned()).or_default().insert(name.to_owned());
        }
    }
    let check = |(provider, models): (String, BTreeSet<String>)| {
        let providers = Arc::clone(&providers);
        let client = client.clone();
        PlannedCheck::new("provider", provider.clone(), async move {
            let listing = providers.list_models(&provider, &client).await;
            match listing {
                Ok(listing) => describe(&provider, providers.has_key(&provider), &models, listing),
                Err(error) => {
                    let first = match error {
                        ListingError::Unreachable(_) => "see to it that this machine can reach it",
                        ListingError::NoProvider(_) | ListingError::NoKey(_) => "set the key",
                    };
                    let advice = format!("{first}, or correct the section [providers.{provider}]");
                    CheckOutcome::fail(error.to_string(), advice)
                }
            }
        })
    };
    used.into_iter().map(check).collect()
}

fn describe(provider: &str, has_key: bool, models: &BTreeSet<String>, listing: ProviderListing) -> CheckOutcome {
    let answers = match has_key {
        true => "accepts the key",
        false => "answers without a key",
    };
    match listing {
        ProviderListing::KeyRefused(status) if !has_key => CheckOutcome::fail(
            format!("asks for a key (status {status})"),
            format!("set `api_key_env`, `api_key_file` or `api_key` in [providers.{provider}]"),
        ),
        ProviderListing::Local => CheckOutcome::ok("is a script: nothing leaves this machine"),
        ProviderListing::KeyRefused(status) => CheckOutcome::fail(
            format!("does not accept the key (status {status})"),
            "check that the key is complete, valid, and of this provider",
        ),
        ProviderListing::Failing(status) => CheckOutcome::warn(
            format!("is reachable, but answers with status {status}; the key was not checked"),
            "try again later",
        ),
        ProviderListing::NoList(status) => CheckOutcome::warn(
            format!("is reachable, but has no list of models (status {status}); the key was not checked"),
            "check `base_url` if models fail",
        ),
        ProviderListing::Models(listed) if listed.is_empty() => CheckOutcome::ok(answers),
        ProviderListing::Models(listed) => {
            let is_listed = |model: &&String| listed.iter().any(|name| is_version_of(name, model));
            let Some(missing) = models.iter().find(|model| !is_listed(model)) else {
                let models: Vec<&str> = models.iter().map(String::as_str).collect();
                return CheckOutcome::ok(format!("{answers}, and has {}", models.join(", ")));
            };
            let meant = nearest(missing, listed.iter().map(String::as_str));
            let advice = match meant {
                Some(meant) => format!("did you mean `{provider}:{meant}`?"),
                None => "correct the `model` of the agents".to_owned(),
            };
            CheckOutcome::warn(format!("{answers}, but lists no model `{missing}`"), advice)
        }
    }
}

/// Returns whether a listed name is the model, or a version of it, such as `claude-x-20260101` or `qwen3:latest`.
fn is_version_of(listed: &str, model: &str) -> bool {
    let rest = listed.strip_prefix(model);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':', '@']))
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    fn told(listed: &[&str], used: &str) -> CheckOutcome {
        let listed = listed.iter().map(|name| (*name).to_owned()).collect();
        describe("lab", true, &[used.to_owned()].into(), ProviderListing::Models(listed))
    }

    #[test]
    fn a_provider_without_a_key_is_not_said_to_accept_one() {
        let models: BTreeSet<String> = ["m".to_owned()].into();
        let listed = ProviderListing::Models(vec!["m".to_owned()]);
        assert_eq!(
            describe("lab", false, &models, listed).message,
            "answers without a key, and has m"
        );
        let refused = describe("lab", false, &models, ProviderListing::KeyRefused(401));
        assert_eq!(refused.message, "asks for a key (status 401)");
        assert!(refused.advice.is_some_and(|advice| advice.contains("[providers.lab]")));
    }

    #[test]
    fn a_model_that_is_not_listed_is_reported_with_the_nearest_one() {
        assert_eq!(told(&["gpt-5"], "gpt").status, CheckStatus::Ok);
        assert_eq!(told(&["gpt-5"], "gp").status, CheckStatus::Warn);
        let found = told(&["gpt-5", "gpt-5-mini"], "gtp-5");
        assert_eq!(found.status, CheckStatus::Warn);
        assert_eq!(found.advice.as_deref(), Some("did you mean `lab:gpt-5`?"));
        assert_eq!(told(&["claude-x-20260101"], "claude-x").status, CheckStatus::Ok);
        assert_eq!(told(&["qwen3:latest"], "qwen3").status, CheckStatus::Ok);
    }
}
