//! The translation of the conditions of a policy into [`RowCondition`]s.
//!
//! A policy asks about the caller and about the resource. What it asks about the caller alone, Cedar evaluates for each
//! request. What it asks about the resource becomes a condition on rows, so that it also filters searches. The questions
//! about a resource are therefore limited to its type, its owner and equal texts in its metadata; a policy that asks
//! anything else of it is refused when it is read.

use std::str::FromStr;

use cedar_policy::{
    Authorizer, Context, Decision, Entities, EntityId, EntityTypeName, EntityUid, Policy, PolicySet, Request,
};
use serde_json::{Map, Value, json};

use crate::domain::filter::MetadataFilter;
use crate::domain::identity::{Identity, UserId};
use crate::domain::json_limits;
use crate::domain::ruling::RowCondition;

/// The maximum number of parts of one policy's conditions.
const MAX_PARTS: usize = 64;
/// The maximum nesting of a condition on the caller. Cedar evaluates it for each request, calling itself for each level
/// on the stack of a thread that serves requests.
const MAX_CALLER_NESTING: usize = 32;
/// The stack that Cedar needs for such a condition, with room to spare in builds without optimisation. Cedar refuses to
/// evaluate where less than its own bound is left.
const EVALUATION_STACK_BYTES: usize = 1024 * 1024;
/// The size of the stack that is allocated where less is left.
const NEW_STACK_BYTES: usize = 4 * EVALUATION_STACK_BYTES;

/// The questions about a resource that a policy can ask, for errors.
const ALLOWED: &str = "it may compare `resource.owner` with `principal` or with a user, compare a text in the metadata as in \
    `resource.hasTag(\"visibility\") && resource.getTag(\"visibility\") == \"team\"`, and ask `resource is Thread`, combined with \
    `&&`, `||`, `!` and `if`";

/// A condition of a policy.
pub(super) enum ConditionNode {
    /// A condition on the caller alone.
    OfCaller(Box<PolicySet>),
    /// The resource is of this type.
    IsType(String),
    /// The caller owns the resource.
    OwnedByCaller,
    /// The user with this id, `tenant/user`, owns the resource.
    OwnedBy(String),
    /// The metadata of the resource match.
    Metadata(MetadataFilter),
    /// The condition is not true.
    Not(Box<Self>),
    /// All of the conditions are true. Later ones are not evaluated if an earlier one is false.
    All(Vec<Self>),
    /// One of the conditions is true. Later ones are not evaluated if an earlier one is true.
    Any(Vec<Self>),
    /// If the first condition is true, the second, else the third.
    If(Box<[Self; 3]>),
}

/// The caller of a request, as Cedar sees it.
pub(super) struct CedarCaller<'a> {
    pub(super) identity: &'a Identity,
    pub(super) user: EntityUid,
    pub(super) action: EntityUid,
    /// The type of the resources of the action.
    pub(super) resource_type: &'static str,
    pub(super) entities: Entities,
}

/// Returns the id of an entity.
///
/// # Errors
/// States why the type is not a name.
pub(super) fn uid(type_name: &str, id: &str) -> Result<EntityUid, String> {
    let type_name = EntityTypeName::from_str(type_name).map_err(|error| error.to_string())?;
    Ok(EntityUid::from_type_name_and_id(type_name, EntityId::new(id)))
}

/// Returns the id of a user's entity: ids of users are unique within a tenant only.
pub(super) fn user_id(identity: &Identity) -> String {
    format!("{}/{}", identity.tenant, identity.user)
}

impl ConditionNode {
    /// Translates the conditions of a policy in Cedar's JSON form.
    ///
    /// # Errors
    /// States what the policy must not ask.
    pub(super) fn of_policy(policy: &Value) -> Result<Self, String> {
        // Values that are compared with columns must be text that databases take.
        json_limits::check_to(policy, usize::MAX).map_err(|exceeded| exceeded.to_string())?;
        let mut all = vec![];
        for condition in policy["conditions"].as_array().into_iter().flatten() {
            let node = translate(&condition["body"])?;
            all.push(match condition["kind"].as_str() {
                Some("when") => node,
                Some("unless") => Self::Not(Box::new(node)),
                Some(_) | None => return Err("has a condition that is neither `when` nor `unless`".to_owned()),
            });
        }
        let whole = Self::All(all);
        match whole.parts() {
            ..=MAX_PARTS => Ok(whole),
            _ => Err(format!(
                "has more than {MAX_PARTS} parts in its conditions, where those behind an `if` count twice"
            )),
        }
    }

    /// Returns the number of questions in the condition. The first condition of an `if` is asked twice.
    pub(super) fn parts(&self) -> usize {
        let sum = |all: &[Self]| all.iter().map(Self::parts).fold(0, usize::saturating_add);
        match self {
            Self::OfCaller(_) | Self::IsType(_) | Self::OwnedByCaller | Self::OwnedBy(_) | Self::Metadata(_) => 1,
            Self::Not(inner) => inner.parts(),
            Self::All(all) | Self::Any(all) => sum(all),
            Self::If(parts) => {
                let [condition, ..] = &**parts;
                sum(&**parts).saturating_add(condition.parts())
            }
        }
    }

    /// Returns the condition on rows for this caller.
    ///
    /// # Errors
    /// States why a condition on the caller could not be evaluated.
    pub(super) fn row_condition(&self, caller: &CedarCaller<'_>) -> Result<RowCondition, String> {
        Ok(match self {
            Self::OfCaller(condition) => RowCondition::Is(caller.meets(condition)?),
            Self::IsType(name) => RowCondition::Is(name == caller.resource_type),
            Self::OwnedByCaller => RowCondition::OwnedBy(caller.identity.user.clone()),
            Self::OwnedBy(id) => match id.split_once('/') {
                Some((tenant, user)) if tenant == caller.identity.tenant.as_str() => {
                    RowCondition::OwnedBy(UserId::stored(user.to_owned()))
                }
                // Nobody of another tenant owns a resource of this one.
                Some(_) | None => RowCondition::NEVER,
            },
            Self::Metadata(filter) => RowCondition::Metadata(filter.clone()),
            Self::Not(inner) => inner.row_condition(caller)?.negated(),
            Self::All(all) => {
                let mut conditions = vec![];
                for node in all {
                    let condition = node.row_condition(caller)?;
                    if condition == RowCondition::NEVER {
                        return Ok(condition);
                    }
                    conditions.push(condition);
                }
                RowCondition::all(conditions)
            }
            Self::Any(any) => {
                let mut conditions = vec![];
                for node in any {
                    let condition = node.row_condition(caller)?;
                    if condition == RowCondition::ALWAYS {
                        return Ok(condition);
                    }
                    conditions.push(condition);
                }
                RowCondition::any(conditions)
            }
            Self::If(parts) => {
                let [condition, then, otherwise] = &**parts;
                let condition = condition.row_condition(caller)?;
                if condition == RowCondition::ALWAYS {
                    return then.row_condition(caller);
                }
                if condition == RowCondition::NEVER {
                    return otherwise.row_condition(caller);
                }
                RowCondition::any([
                    RowCondition::all([condition.clone(), then.row_condition(caller)?]),
                    RowCondition::all([condition.negated(), otherwise.row_condition(caller)?]),
                ])
            }
        })
    }
}

impl CedarCaller<'_> {
    /// Returns whether the caller meets a condition, which does not mention the resource.
    fn meets(&self, condition: &PolicySet) -> Result<bool, String> {
        // The resource is not looked at; any entity will do.
        let resource = self.user.clone();
        let request = Request::new(self.user.clone(), self.action.clone(), resource, Context::empty(), None);
        let request = request.map_err(|error| error.to_string())?;
        let evaluate = || Authorizer::new().is_authorized(&request, condition, &self.entities);
        let response = stacker::maybe_grow(EVALUATION_STACK_BYTES, NEW_STACK_BYTES, evaluate);
        match response.diagnostics().errors().next() {
            Some(error) => Err(error.to_string()),
            None => Ok(response.decision() == Decision::Allow),
        }
    }
}

/// Returns the only field of an expression: its operator, and the operands.
fn operator(expression: &Value) -> Option<(&str, &Value)> {
    let fields = expression.as_object().filter(|fields| fields.len() == 1)?;
    fields.iter().next().map(|(name, operands)| (name.as_str(), operands))
}

fn is_variable(expression: &Value, name: &str) -> bool {
    operator(expression).is_some_and(|(kind, variable)| kind == "Var" && variable == name)
}

fn mentions_resource(expression: &Value) -> bool {
    match expression {
        Value::Object(fields) => is_variable(expression, "resource") || fields.values().any(mentions_resource),
        Value::Array(items) => items.iter().any(mentions_resource),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn translate(expression: &Value) -> Result<ConditionNode, String> {
    if !mentions_resource(expression) {
        return of_caller(expression);
    }
    let refusal = || format!("asks about the resource in a way that searches cannot be filtered by: {ALLOWED}");
    let (name, operands) = operator(expression).ok_or_else(refusal)?;
    match name {
        "!" => Ok(ConditionNode::Not(Box::new(translate(&operands["arg"])?))),
        "&&" => conjunction(expression),
        "||" => {
            let left = translate(&operands["left"])?;
            let right = translate(&operands["right"])?;
            Ok(ConditionNode::Any(vec![left, right]))
        }
        "if-then-else" => {
            let condition = translate(&operands["if"])?;
            let then = translate(&operands["then"])?;
            let otherwise = translate(&operands["else"])?;
            Ok(ConditionNode::If(Box::new([condition, then, otherwise])))
        }
        "==" => equality(operands).ok_or_else(refusal),
        "!=" => {
            // Metadata without the text would not differ from it, either.
            let equal = equality(operands).filter(|node| !matches!(node, ConditionNode::Metadata(_)));
            equal.map(|node| ConditionNode::Not(Box::new(node))).ok_or_else(refusal)
        }
        "is" if is_variable(&operands["left"], "resource") && operands.get("in").is_none() => {
            let name = operands["entity_type"].as_str().ok_or_else(refusal)?;
            Ok(ConditionNode::IsType(name.to_owned()))
        }
        _ => Err(refusal()),
    }
}

/// Creates the condition on the caller: a policy of its own, which permits if the condition is true.
fn of_caller(expression: &Value) -> Result<ConditionNode, String> {
    // Two levels of JSON are one of the expression: its operator, and the operands.
    if json_limits::check_to(expression, 2 * MAX_CALLER_NESTING).is_err() {
        return Err(format!(
            "nests deeper than {MAX_CALLER_NESTING} levels in what it asks about the principal"
        ));
    }
    let policy = json!({
        "effect": "permit", "principal": {"op": "All"}, "action": {"op": "All"}, "resource": {"op": "All"},
        "conditions": [{"kind": "when", "body": expression}],
    });
    let policy = Policy::from_json(None, policy).map_err(|error| error.to_string())?;
    let set = PolicySet::from_policies([policy]).map_err(|error| error.to_string())?;
    Ok(ConditionNode::OfCaller(Box::new(set)))
}

/// Translates a chain of `&&`. In it, `resource.hasTag("k")` says nothing beside `resource.getTag("k") == "v"`.
fn conjunction(expression: &Value) -> Result<ConditionNode, String> {
    let mut chain = vec![];
    flatten(expression, &mut chain);
    let mut all = vec![];
    for one in &chain {
        let is_implied = |key: &str| chain.iter().any(|other| needs_text(other, key));
        match tag_test(one) {
            Some(key) if is_implied(key) => {}
            Some(_) | None => all.push(translate(one)?),
        }
    }
    Ok(ConditionNode::All(all))
}

fn flatten<'a>(expression: &'a Value, chain: &mut Vec<&'a Value>) {
    match operator(expression) {
        Some(("&&", operands)) => {
            flatten(&operands["left"], chain);
            flatten(&operands["right"], chain);
        }
        Some(_) | None => chain.push(expression),
    }
}

/// Returns the key of `resource.hasTag("key")`.
fn tag_test(expression: &Value) -> Option<&str> {
    match operator(expression)? {
        ("hasTag", operands) if is_variable(&operands["left"], "resource") => operands["right"]["Value"].as_str(),
        _ => None,
    }
}

/// Returns whether an expression is true only if the metadata have a certain text under this key.
fn needs_text(expression: &Value, key: &str) -> bool {
    match operator(expression) {
        Some(("==", operands)) => text_comparison(operands).is_some_and(|(own, _)| own == key),
        Some(("||", operands)) => needs_text(&operands["left"], key) && needs_text(&operands["right"], key),
        Some(("&&", operands)) => needs_text(&operands["left"], key) || needs_text(&operands["right"], key),
        Some(_) | None => false,
    }
}

/// Returns the key and the text of `resource.getTag("key") == "text"`.
fn text_comparison(operands: &Value) -> Option<(&str, &str)> {
    let left = &operands["left"];
    let right = &operands["right"];
    let [tag, text] = match tag_key(left) {
        Some(_) => [left, right],
        None => [right, left],
    };
    Some((tag_key(tag)?, text["Value"].as_str()?))
}

/// Returns the key of `resource.getTag("key")`.
fn tag_key(expression: &Value) -> Option<&str> {
    match operator(expression)? {
        ("getTag", of) if is_variable(&of["left"], "resource") => of["right"]["Value"].as_str(),
        _ => None,
    }
}

/// Translates the comparison of a text in the metadata, or of the owner.
fn equality(operands: &Value) -> Option<ConditionNode> {
    if let Some((key, text)) = text_comparison(operands) {
        let wanted = Map::from_iter([(key.to_owned(), json!(text))]);
        return MetadataFilter::new("metadata", wanted)
            .ok()
            .map(ConditionNode::Metadata);
    }
    let is_owner = |side: &Value| match operator(side) {
        Some((".", of)) => is_variable(&of["left"], "resource") && of["attr"] == "owner",
        Some(_) | None => false,
    };
    let left = &operands["left"];
    let right = &operands["right"];
    let user = match (is_owner(left), is_owner(right)) {
        (true, false) => right,
        (false, true) => left,
        (true, true) | (false, false) => return None,
    };
    if is_variable(user, "principal") {
        return Some(ConditionNode::OwnedByCaller);
    }
    let entity = &user["Value"]["__entity"];
    let is_user = entity["type"] == "User";
    entity["id"]
        .as_str()
        .filter(|_| is_user)
        .map(|id| ConditionNode::OwnedBy(id.to_owned()))
}
