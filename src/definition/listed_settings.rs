//! The settings of listed policies that are also fields of a definition.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::approval::{ApprovalRule, InterruptMode};
use super::builtins::{APPROVAL, ASK_USER, MEMORY, SKILLS, STORE, TODOS, UNTIL};
use super::policy::Policy;
use super::read::read;
use super::source::SkillSource;
use super::store::{NamespaceAccess, StoreRule};
use super::until_tool::UntilTool;

/// The settings of all built-in policies; each has some of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Settings {
    namespace: Option<Vec<String>>,
    read_only: bool,
    sources: Vec<Value>,
    tools: Vec<String>,
    interrupt_on: BTreeMap<String, ApprovalRule>,
    interrupt_mode: InterruptMode,
}

/// The values of fields that listed policies set.
#[derive(Debug, Default)]
pub(super) struct ListedSettings {
    pub(super) todos: bool,
    pub(super) ask_user: bool,
    pub(super) store: Option<StoreRule>,
    pub(super) skills: Option<(Vec<SkillSource>, Vec<String>)>,
    pub(super) memory: Option<Vec<String>>,
    pub(super) interrupt_on: Option<BTreeMap<String, ApprovalRule>>,
    pub(super) interrupt_mode: Option<InterruptMode>,
    pub(super) until: Option<UntilTool>,
}

impl ListedSettings {
    /// Reads the settings of these policies. Invalid ones are left out, since a check has reported them.
    pub(super) fn of(policies: &[Policy]) -> Self {
        let mut values = Self::default();
        for policy in policies {
            let settings = || {
                read::<Settings>(Value::Object(policy.settings.clone()))
                    .value
                    .unwrap_or_default()
            };
            match policy.name.as_str() {
                TODOS => values.todos = true,
                ASK_USER => values.ask_user = true,
                STORE => values.store = Some(store(settings())),
                SKILLS => {
                    let Settings { sources, tools, .. } = settings();
                    values.skills = Some((valid_elements(sources), tools));
                }
                MEMORY => values.memory = Some(valid_elements(settings().sources)),
                APPROVAL => {
                    let settings = settings();
                    values.interrupt_mode = policy.settings.get("interrupt_mode").map(|_| settings.interrupt_mode);
                    values.interrupt_on = Some(settings.interrupt_on);
                }
                UNTIL => values.until = Some(UntilTool::Any(settings().tools)),
                _ => {}
            }
        }
        values
    }
}

fn store(settings: Settings) -> StoreRule {
    let standard = NamespaceAccess::default();
    let namespace = settings.namespace.unwrap_or(standard.namespace);
    StoreRule::Settings(NamespaceAccess {
        namespace,
        read_only: settings.read_only,
    })
}

fn valid_elements<T: serde::de::DeserializeOwned>(values: Vec<Value>) -> Vec<T> {
    values
        .into_iter()
        .filter_map(|value| serde_json::from_value(value).ok())
        .collect()
}
