//! The checks of model providers: their keys, and whether they have the models that agents use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use reqwest::Client;

use super::super::builder::Prepared;
use super::{CheckOutcome, PlannedCheck, keys};
use crate::domain::suggestion::nearest;
use crate::model::providers::ProviderListing;

/// Returns one check for each provider that agents or the index of the Store use.
pub(super) fn plan(prepared: &Prepared, client: &Client) -> Vec<PlannedCheck> {
    let config = &prepared.loaded().config;
    let providers = Arc::new(super::super::providers(config).with_own(prepared.registered().sources()));
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, model) in keys::models(config) {
        if let Some(provider) = providers.provider_of(model) {
            let name = model.split_once(':').map_or(model, |(_, name)| name);
            used.entry(provider.to_owned()).or_default().insert(name.to_owned());
        }
    }
    let check = |(provider, models): (String, BTreeSet<String>)| {
        let providers = Arc::clone(&providers);
        let client = client.clone();
        PlannedCheck::new("provider", provider.clone(), async move {
            let listing = providers.list_models(&provider, &client).await;
            match listing {
                Ok(listing) => describe(&provider, &models, listing),
                Err(reason) => {
                    let advice = format!("set the key, or correct the section [providers.{provider}]");
                    CheckOutcome::fail(reason, advice)
                }
            }
        })
    };
    used.into_iter().map(check).collect()
}

fn describe(provider: &str, models: &BTreeSet<String>, listing: ProviderListing) -> CheckOutcome {
    match listing {
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
        ProviderListing::Models(listed) if listed.is_empty() => CheckOutcome::ok("accepts the key"),
        ProviderListing::Models(listed) => {
            let is_listed = |model: &&String| listed.iter().any(|name| is_version_of(name, model));
            let Some(missing) = models.iter().find(|model| !is_listed(model)) else {
                let models: Vec<&str> = models.iter().map(String::as_str).collect();
                return CheckOutcome::ok(format!("accepts the key, and has {}", models.join(", ")));
            };
            let meant = nearest(missing, listed.iter().map(String::as_str));
            let advice = match meant {
                Some(meant) => format!("did you mean `{provider}:{meant}`?"),
                None => "correct the `model` of the agents".to_owned(),
            };
            CheckOutcome::warn(format!("accepts the key, but lists no model `{missing}`"), advice)
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
        describe("lab", &[used.to_owned()].into(), ProviderListing::Models(listed))
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
