//! The `[store]` section of the configuration file, and its validation.

use std::time::Duration;

use serde::Deserialize;

use super::Config;
use super::shared_checks::MIN_SWEEP_MINUTES;
use crate::definition::check::check_model;
use crate::definition::provider::ProviderKind;
use crate::definition::{Diagnostic, FieldPath, ValidationContext};
use crate::domain::item::texts::MAX_PATHS;
use crate::domain::item::{self, TextPath};

/// The maximum length of vectors, which is the limit of pgvector.
const MAX_DIMS: usize = 16_000;

/// The maximum interval of removing expired items, in minutes: a day.
const MAX_SWEEP_MINUTES: f64 = 1440.0;

/// `[store]`: the Store, which outlives threads.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSection {
    /// The time to live of items.
    pub ttl: ItemTtl,
    /// The vector index; without it, items are found by namespace and content only.
    pub index: Option<IndexSection>,
}

/// `[store.index]`: the vector index for searches with a `query`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct IndexSection {
    /// The number of dimensions of the model's vectors; required.
    pub dims: usize,
    /// The embedding model, as `provider:model-name`; required.
    pub embed: String,
    /// The texts of an item to index, unless a request names others: `$` is the whole value.
    pub fields: Vec<String>,
}

impl Default for IndexSection {
    fn default() -> Self {
        Self {
            dims: 0,
            embed: String::new(),
            fields: vec!["$".to_owned()],
        }
    }
}

/// `[store.ttl]`: the time to live of items.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ItemTtl {
    /// The time to live of items that have no `ttl` of their own, in minutes; unlimited if absent.
    pub default_ttl: Option<f64>,
    /// True if reading an item restarts its time to live.
    pub refresh_on_read: bool,
    /// The interval at which expired items are removed, in minutes; at least 0.002. Expired items cannot be read even
    /// before that.
    pub sweep_interval_minutes: f64,
}

impl Default for ItemTtl {
    fn default() -> Self {
        Self {
            default_ttl: None,
            refresh_on_read: true,
            sweep_interval_minutes: 5.0,
        }
    }
}

impl ItemTtl {
    /// Returns [`ItemTtl::default_ttl`] as a duration.
    pub fn default_ttl(&self) -> Option<Duration> {
        self.default_ttl
            .and_then(|minutes| item::ttl("default_ttl", minutes).ok())
    }

    /// Returns [`ItemTtl::sweep_interval_minutes`] as a duration.
    pub fn sweep_interval(&self) -> Duration {
        Duration::try_from_secs_f64(self.sweep_interval_minutes * 60.0).unwrap_or(Duration::from_secs(300))
    }
}

/// Validates the section.
pub(super) fn check(config: &Config, validation_context: &ValidationContext) -> Vec<Diagnostic> {
    let store = &config.store;
    let field = FieldPath::of(["store", "ttl"]);
    let mut findings = store
        .index
        .as_ref()
        .map(|index| check_index(index, config, validation_context))
        .unwrap_or_default();
    if let Some(Err(invalid)) = store.ttl.default_ttl.map(|minutes| item::ttl("default_ttl", minutes)) {
        findings.push(Diagnostic::error(field.then("default_ttl"), invalid.reason));
    }
    let interval = store.ttl.sweep_interval_minutes;
    if !(MIN_SWEEP_MINUTES..=MAX_SWEEP_MINUTES).contains(&interval) {
        let message = format!("must be from {MIN_SWEEP_MINUTES} to {MAX_SWEEP_MINUTES} minutes");
        findings.push(Diagnostic::error(field.then("sweep_interval_minutes"), message));
    }
    findings
}

fn check_index(index: &IndexSection, config: &Config, validation_context: &ValidationContext) -> Vec<Diagnostic> {
    let field = FieldPath::of(["store", "index"]);
    let mut findings = check_model(&field.then("embed"), &index.embed, validation_context);
    let mut error = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
    if !(1..=MAX_DIMS).contains(&index.dims) {
        error(
            field.then("dims"),
            format!("must be given: the number of dimensions of the model's vectors, from 1 to {MAX_DIMS}"),
        );
    }
    let provider = index.embed.split(':').next().unwrap_or_default();
    let declared = config.providers.get(provider).and_then(|section| section.kind);
    let kind = declared.or_else(|| ProviderKind::built_in(provider));
    if kind.is_some_and(|kind| !kind.traits().has_embeddings) {
        error(
            field.then("embed"),
            format!("`{provider}` offers no embeddings; name a model of another provider"),
        );
    }
    if index.fields.is_empty() {
        error(
            field.then("fields"),
            "must name at least one path; `$` is all of the value".to_owned(),
        );
    }
    for (at, path) in index.fields.iter().enumerate() {
        if let Err(reason) = TextPath::read(path) {
            error(field.then("fields").then(at), reason);
        }
    }
    if index.fields.len() > MAX_PATHS {
        error(
            field.then("fields"),
            format!("must not name more than {MAX_PATHS} paths"),
        );
    }
    findings
}
