//! The settings of the subagent that every agent has by default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::approval::ApprovalRule;
use super::inherit::Inherit;
use super::model_names::ModelNames;
use super::policy::Policy;
use super::prompt::SystemPrompt;
use crate::domain::stored::is_default;
use crate::domain::visibility::Visibility;

/// The subagent that every agent has by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GeneralPurpose {
    /// True if the agent has the subagent.
    pub enabled: bool,
    /// The name; `general-purpose` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The description; a standard text when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The instructions; a standard text when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<SystemPrompt>,
    /// The model or models; the agent's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelNames>,
    /// The tools; the agent's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// The calls that need approval; the agent's rules when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_on: Option<BTreeMap<String, ApprovalRule>>,
    /// The part of its work that clients see; all of it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Its own policies, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub middleware: Vec<Policy>,
    /// The parts of the agent that it has, beyond those that every subagent has.
    #[serde(skip_serializing_if = "is_default")]
    pub inherit: Inherit,
    /// The policies that it does not get, by their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub block_middleware: Vec<String>,
}

/// The default name of the general-purpose subagent.
pub const GENERAL_PURPOSE: &str = "general-purpose";

impl Default for GeneralPurpose {
    fn default() -> Self {
        Self {
            enabled: true,
            name: None,
            description: None,
            system_prompt: None,
            model: None,
            tools: None,
            interrupt_on: None,
            visibility: None,
            middleware: vec![],
            inherit: Inherit::default(),
            block_middleware: vec![],
        }
    }
}
