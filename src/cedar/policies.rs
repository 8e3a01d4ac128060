//! The policies of a server, and their rulings.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use cedar_policy::{
    ActionConstraint, Effect, Entities, Entity, EntityUid, Policy, PolicySet, PrincipalConstraint, ResourceConstraint,
    RestrictedExpression, Schema, ValidationMode, Validator,
};
use miette::Diagnostic;

use super::condition::{CedarCaller, ConditionNode, uid, user_id};
use super::nesting::{self, MAX_NESTING};
use super::schema::{self, groups_of, type_of};
use super::{MAX_FILE_BYTES, PolicyFile, PolicyMistake};
use crate::domain::access::{Action, ResourceFacts};
use crate::domain::identity::Identity;
use crate::domain::ruling::{AccessPolicies, RowCondition, Ruling};

/// The maximum number of policies of a server.
const MAX_POLICIES: usize = 256;
/// The maximum number of parts of the conditions of all policies together. A search has all of them in its SQL, twice if
/// they are about searching and reading, and SQLite prepares thousands of conditions on metadata slowly.
const MAX_PARTS_OF_ALL: usize = 512;
/// The maximum length of the `@id` of a policy, in bytes.
const MAX_ID_BYTES: usize = 100;
/// The maximum number of mistakes that are reported of a file.
const MAX_MISTAKES_OF_FILE: usize = 20;
/// The maximum number of policies that are named for a refusal.
const MAX_NAMED: usize = 16;

/// Policies that were read.
#[derive(Debug)]
pub(super) struct ReadPolicies {
    pub(super) policies: CedarPolicies,
    pub(super) warnings: Vec<PolicyMistake>,
}

/// The policies of a server.
pub(super) struct CedarPolicies {
    policies: Vec<CompiledPolicy>,
    /// The actions with their groups.
    actions: Entities,
    /// True after the log says that a caller cannot be shown to Cedar.
    has_failed: AtomicBool,
}

/// A policy, ready to be evaluated.
struct CompiledPolicy {
    /// The annotation `@id`, or the file with the number of the policy.
    id: String,
    forbids: bool,
    actions: BTreeSet<Action>,
    principal: PrincipalConstraint,
    condition: ConditionNode,
    /// True after the log says that the policy cannot be evaluated.
    has_failed: AtomicBool,
}

/// The conditions under which a policy applies to an action of a caller.
struct Verdict<'a> {
    policy: &'a CompiledPolicy,
    /// The resources that it permits or forbids.
    condition: RowCondition,
}

impl fmt::Debug for CedarPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.policies.iter().map(|policy| &policy.id))
            .finish()
    }
}

impl CedarPolicies {
    /// Reads and validates policies.
    ///
    /// # Errors
    /// Returns all mistakes.
    pub(super) fn read(files: &[PolicyFile]) -> Result<ReadPolicies, Vec<PolicyMistake>> {
        let own =
            own_schema().map_err(|message| vec![PolicyMistake::error("the schema of the server", None, message)])?;
        let validator = Validator::new(own.schema);
        let mut reader = PolicyReader::default();
        for file in files {
            reader.read(file, &validator);
        }
        if reader.has_errors() {
            // The warnings may follow from the errors.
            reader.mistakes.retain(|mistake| !mistake.is_warning);
            return Err(reader.mistakes);
        }
        let policies = Self {
            policies: reader.policies,
            actions: own.actions,
            has_failed: AtomicBool::new(false),
        };
        Ok(ReadPolicies {
            policies,
            warnings: reader.mistakes,
        })
    }

    /// Returns the caller of a request as Cedar sees it.
    fn caller<'a>(&self, identity: &'a Identity, action: Action) -> Result<CedarCaller<'a>, String> {
        let user = uid("User", &user_id(identity))?;
        let texts = |all: &mut dyn Iterator<Item = String>| {
            RestrictedExpression::new_set(all.map(RestrictedExpression::new_string).collect::<Vec<_>>())
        };
        let roles = texts(&mut identity.roles.iter().map(|role| role.word().to_owned()));
        let permissions = texts(&mut identity.scopes.iter().flatten().cloned());
        let tenant = RestrictedExpression::new_string(identity.tenant.to_string());
        let attributes = [("tenant", tenant), ("roles", roles), ("permissions", permissions)];
        let claims = identity.claims.iter().filter_map(|(name, value)| {
            let text = value.as_str()?.to_owned();
            Some((name.clone(), RestrictedExpression::new_string(text)))
        });
        let entity = Entity::new_with_tags(
            user.clone(),
            attributes.map(|(name, value)| (name.to_owned(), value)),
            [uid("Tenant", identity.tenant.as_str())?],
            claims,
        );
        let entity = entity.map_err(|error| error.to_string())?;
        let entities = self.actions.clone().add_entities([entity], None);
        Ok(CedarCaller {
            identity,
            user,
            action: uid("Action", action.word())?,
            resource_type: type_of(action),
            entities: entities.map_err(|error| error.to_string())?,
        })
    }

    /// Returns what each policy says about an action of this caller. One that cannot be evaluated forbids everything if it
    /// forbids, and permits nothing if it permits.
    fn verdicts(&self, identity: &Identity, action: Action) -> Vec<Verdict<'_>> {
        let applicable = self.policies.iter().filter(|policy| policy.actions.contains(&action));
        let applicable: Vec<&CompiledPolicy> = applicable.collect();
        if applicable.is_empty() {
            return vec![];
        }
        let caller = match self.caller(identity, action) {
            Ok(caller) => caller,
            Err(error) => {
                if !self.has_failed.swap(true, Ordering::Relaxed) {
                    tracing::error!(user = %identity.user, tenant = %identity.tenant, %error, "no access policy can be evaluated");
                }
                return applicable.into_iter().map(Verdict::failed).collect();
            }
        };
        let about_caller = applicable.into_iter().filter(|policy| policy.is_about(&caller));
        let verdicts = about_caller.map(|policy| match policy.condition.row_condition(&caller) {
            Ok(condition) => Verdict { policy, condition },
            Err(error) => {
                if !policy.has_failed.swap(true, Ordering::Relaxed) {
                    tracing::error!(policy = %policy.id, %action, %error, "an access policy cannot be evaluated");
                }
                Verdict::failed(policy)
            }
        });
        verdicts.collect()
    }
}

impl<'a> Verdict<'a> {
    /// The verdict of a policy that cannot be evaluated.
    fn failed(policy: &'a CompiledPolicy) -> Self {
        Self {
            policy,
            condition: RowCondition::Is(policy.forbids),
        }
    }
}

impl AccessPolicies for CedarPolicies {
    fn ruling(&self, identity: &Identity, action: Action) -> Ruling {
        let verdicts = self.verdicts(identity, action);
        let any = |forbids: bool| {
            let alike = verdicts.iter().filter(|verdict| verdict.policy.forbids == forbids);
            RowCondition::any(alike.map(|verdict| verdict.condition.clone()))
        };
        Ruling {
            permits: any(false),
            forbids: any(true),
        }
    }

    fn forbidding(&self, identity: &Identity, action: Action, facts: &ResourceFacts) -> Vec<String> {
        let verdicts = self.verdicts(identity, action).into_iter();
        let forbid = verdicts.filter(|verdict| verdict.policy.forbids && facts.is_forbidden_by(&verdict.condition));
        forbid
            .map(|verdict| verdict.policy.id.clone())
            .take(MAX_NAMED)
            .collect()
    }
}

impl CompiledPolicy {
    fn new(policy: &Policy, id: String) -> Result<Self, String> {
        let types: BTreeSet<String> = match policy.resource_constraint() {
            ResourceConstraint::Any => Action::ALL.iter().map(|action| type_of(*action).to_owned()).collect(),
            ResourceConstraint::Is(name) => BTreeSet::from([name.to_string()]),
            ResourceConstraint::In(_) | ResourceConstraint::Eq(_) | ResourceConstraint::IsIn(..) => {
                return Err(
                    "names a single resource; a policy is about all resources, or those of a type: \
                            `resource is Thread`"
                        .to_owned(),
                );
            }
        };
        let of_type = |action: &Action| types.contains(type_of(*action));
        let actions = Action::ALL.iter().copied().filter(of_type);
        let constraint = policy.action_constraint();
        let json = policy.to_json().map_err(|error| error.to_string())?;
        Ok(Self {
            id,
            forbids: policy.effect() == Effect::Forbid,
            actions: actions.filter(|action| is_named(*action, &constraint)).collect(),
            principal: policy.principal_constraint(),
            condition: ConditionNode::of_policy(&json)?,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Returns whether the head of the policy is about this caller.
    fn is_about(&self, caller: &CedarCaller<'_>) -> bool {
        let is_user = |id: &EntityUid| *id == caller.user;
        let is_in = |id: &EntityUid| is_user(id) || uid("Tenant", caller.identity.tenant.as_str()).as_ref() == Ok(id);
        match &self.principal {
            PrincipalConstraint::Any => true,
            PrincipalConstraint::Eq(id) => is_user(id),
            PrincipalConstraint::In(id) => is_in(id),
            PrincipalConstraint::Is(name) => name.to_string() == "User",
            PrincipalConstraint::IsIn(name, id) => name.to_string() == "User" && is_in(id),
        }
    }
}

/// Returns whether the head of a policy names an action, or a group of it.
fn is_named(action: Action, constraint: &ActionConstraint) -> bool {
    let is_this = |id: &EntityUid| id.id().unescaped() == action.word();
    let is_group = |id: &EntityUid| groups_of(action).contains(&id.id().unescaped());
    match constraint {
        ActionConstraint::Any => true,
        ActionConstraint::Eq(id) => is_this(id),
        ActionConstraint::In(ids) => ids.iter().any(|id| is_this(id) || is_group(id)),
    }
}

/// The schema of the server.
struct OwnSchema {
    schema: Schema,
    /// The entities of its actions.
    actions: Entities,
}

/// Returns the schema of the server.
fn own_schema() -> Result<OwnSchema, String> {
    let (schema, _) = Schema::from_cedarschema_str(&schema::text()).map_err(|error| error.to_string())?;
    let actions = schema.action_entities().map_err(|error| error.to_string())?;
    Ok(OwnSchema { schema, actions })
}

/// Reads files of policies one after the other.
#[derive(Default)]
struct PolicyReader {
    policies: Vec<CompiledPolicy>,
    mistakes: Vec<PolicyMistake>,
    ids: BTreeSet<String>,
    /// The number of policies so far, with those that have mistakes.
    number: usize,
    /// The number of parts of their conditions.
    parts: usize,
}

impl PolicyReader {
    fn has_errors(&self) -> bool {
        self.mistakes.iter().any(|mistake| !mistake.is_warning)
    }

    fn refuse(&mut self, file: &str, offset: Option<usize>, message: impl Into<String>) {
        self.mistakes.push(PolicyMistake::error(file, offset, message));
    }

    /// Adds mistakes that Cedar has found, but not thousands of them.
    fn refuse_all<'d>(&mut self, file: &str, found: impl Iterator<Item = &'d dyn Diagnostic>) {
        let mistakes = found.map(|error| PolicyMistake::error(file, offset_of(error), full_text(error)));
        self.mistakes.extend(mistakes.take(MAX_MISTAKES_OF_FILE));
    }

    fn read(&mut self, file: &PolicyFile, validator: &Validator) {
        let name = &file.name;
        if file.text.len() > MAX_FILE_BYTES {
            return self.refuse(name, None, format!("is larger than {MAX_FILE_BYTES} bytes"));
        }
        if let Some(offset) = nesting::first_too_deep(&file.text) {
            let message = format!(
                "nests deeper than {MAX_NESTING} levels; each operator of a chain as `a && b && c` counts as a level"
            );
            return self.refuse(name, Some(offset), message);
        }
        let set: PolicySet = match file.text.parse() {
            Ok(set) => set,
            Err(errors) => {
                let errors: &cedar_policy::ParseErrors = &errors;
                return self.refuse_all(name, errors.iter().map(|error| error as &dyn Diagnostic));
            }
        };
        if let Some(template) = set.templates().next() {
            let message = format!(
                "the policy {} is a template (`?principal` or `?resource`), which is not allowed",
                template.id()
            );
            return self.refuse(name, None, message);
        }
        self.number += set.policies().count();
        if self.number > MAX_POLICIES {
            let message = format!("there are {} policies; at most {MAX_POLICIES} are allowed", self.number);
            return self.refuse(name, None, message);
        }
        let validation = validator.validate(&set, ValidationMode::Strict);
        let errors = validation.validation_errors().map(|error| error as &dyn Diagnostic);
        self.refuse_all(name, errors);
        let warnings = validation.validation_warnings().take(MAX_MISTAKES_OF_FILE);
        self.mistakes.extend(warnings.map(|warning| PolicyMistake {
            is_warning: true,
            ..PolicyMistake::error(name, offset_of(warning), full_text(warning))
        }));
        if self.has_errors() {
            return;
        }
        for policy in set.policies() {
            self.compile(name, policy);
        }
    }

    fn compile(&mut self, file: &str, policy: &Policy) {
        let named = policy.annotation("id").filter(|id| !id.is_empty()).map(str::to_owned);
        let id = named.unwrap_or_else(|| format!("{file}#{}", policy.id()));
        if id.len() > MAX_ID_BYTES {
            return self.refuse(
                file,
                None,
                format!("the `@id` {id:?} is longer than {MAX_ID_BYTES} bytes"),
            );
        }
        if !self.ids.insert(id.clone()) {
            return self.refuse(file, None, format!("two policies have the `@id` {id:?}"));
        }
        match CompiledPolicy::new(policy, id.clone()) {
            Ok(compiled) => {
                self.parts += compiled.condition.parts();
                if self.parts > MAX_PARTS_OF_ALL {
                    let message = format!("the conditions of all policies have more than {MAX_PARTS_OF_ALL} parts");
                    return self.refuse(file, None, message);
                }
                self.policies.push(compiled);
            }
            Err(reason) => self.refuse(file, None, format!("the policy {id:?} {reason}")),
        }
    }
}

fn offset_of(error: &dyn Diagnostic) -> Option<usize> {
    error.labels()?.next().map(|label| label.offset())
}

/// Returns the text of an error with the help that Cedar gives.
fn full_text(error: &dyn Diagnostic) -> String {
    match error.help() {
        Some(help) => format!("{error}; {help}"),
        None => error.to_string(),
    }
}
