//! Conditions on the arguments of tool calls: `{"amount": {"gt": 100}, "to": {"not": {"regex": "@example\\.org$"}}}`.
//!
//! A test may not be applicable to an argument: a comparison of numbers to a text, or to an argument that is absent.
//! Then the outcome is unknown, and the caller chooses the safe side: a rule that asks a human asks, and a decision that
//! was remembered does not apply.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use regex::{Regex, RegexBuilder};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};

use super::json_equality::{are_equal, compare_numbers};
use super::path::normalise;
use super::pattern::Pattern;

/// The maximum number of tables of a condition, and of arguments in one table.
const MOST: usize = 32;
/// The maximum length of a regular expression, in bytes.
const MAX_REGEX_BYTES: usize = 1_000;
/// The maximum size of a compiled regular expression, in bytes.
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// The part of an argument's path that stands for every element of a list.
const EACH: &str = "*";

/// Tests by the path of the argument: all of them have to hold.
pub type ArgumentTests = BTreeMap<String, ArgumentTest>;

/// A condition on the arguments of a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ArgumentCondition {
    /// All tests hold.
    All(ArgumentTests),
    /// All tests of one of the tables hold.
    Any(Vec<ArgumentTests>),
}

impl<'de> Deserialize<'de> for ArgumentCondition {
    /// Written by hand, since the derived code would only report that no variant matched.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Condition;

        impl<'de> Visitor<'de> for Condition {
            type Value = ArgumentCondition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of arguments with their tests, or a list of such tables")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ArgumentCondition, A::Error> {
                ArgumentTests::deserialize(MapAccessDeserializer::new(map)).map(ArgumentCondition::All)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<ArgumentCondition, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(ArgumentCondition::Any)
            }
        }

        deserializer.deserialize_any(Condition)
    }
}

/// The tests of one argument: all that are given have to hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArgumentTest {
    /// The argument is this value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equals: Option<Value>,
    /// The argument is one of these values.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub one_of: Option<Vec<Value>>,
    /// The regular expression matches a part of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// The pattern matches the path of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The number is greater.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gt: Option<Number>,
    /// The number is greater or equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gte: Option<Number>,
    /// The number is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lt: Option<Number>,
    /// The number is less or equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lte: Option<Number>,
    /// The argument is there (`true`), or it is not (`false`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    /// The argument does not meet all of these tests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not: Option<Box<ArgumentTest>>,
}

/// The part of a condition that is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidCondition {
    /// The place in the condition.
    pub place: Vec<String>,
    /// The reason.
    pub reason: String,
}

impl InvalidCondition {
    fn new(reason: impl Into<String>) -> Self {
        Self {
            place: vec![],
            reason: reason.into(),
        }
    }

    fn below(mut self, part: impl Into<String>) -> Self {
        self.place.insert(0, part.into());
        self
    }
}

impl ArgumentCondition {
    /// Returns the condition that the arguments are these.
    pub fn same_as(args: &Map<String, Value>) -> Self {
        let test = |value: &Value| ArgumentTest {
            equals: Some(value.clone()),
            ..ArgumentTest::default()
        };
        Self::All(args.iter().map(|(name, value)| (name.clone(), test(value))).collect())
    }

    /// Compiles the condition.
    ///
    /// # Errors
    /// Returns the first part that is invalid, or exceeds a limit.
    pub fn compile(&self) -> Result<CompiledCondition, InvalidCondition> {
        let tables = match self {
            Self::All(tests) => vec![compile_tests(tests)?],
            Self::Any(tables) => {
                if tables.is_empty() || tables.len() > MOST {
                    return Err(InvalidCondition::new(format!("must have 1 to {MOST} tables")));
                }
                let compiled = tables
                    .iter()
                    .enumerate()
                    .map(|(at, tests)| compile_tests(tests).map_err(|invalid| invalid.below(at.to_string())));
                compiled.collect::<Result<_, _>>()?
            }
        };
        Ok(CompiledCondition { tables })
    }
}

fn compile_tests(tests: &ArgumentTests) -> Result<Vec<(String, CompiledTest)>, InvalidCondition> {
    if tests.is_empty() || tests.len() > MOST {
        return Err(InvalidCondition::new(format!("must name 1 to {MOST} arguments")));
    }
    let compile = |(path, test): (&String, &ArgumentTest)| {
        let compiled = test.compile(false).map_err(|invalid| invalid.below(path.clone()))?;
        Ok((path.clone(), compiled))
    };
    tests.iter().map(compile).collect()
}

impl ArgumentTest {
    fn compile(&self, is_inner: bool) -> Result<CompiledTest, InvalidCondition> {
        if *self == Self::default() {
            let tests = "equals, in, regex, path, gt, gte, lt, lte, exists or not";
            return Err(InvalidCondition::new(format!(
                "has no test; give at least one of {tests}"
            )));
        }
        if is_inner && self.not.is_some() {
            return Err(InvalidCondition::new("must not be inside another `not`").below("not"));
        }
        if let Some(values) = self.one_of.as_ref().filter(|values| values.len() > MOST) {
            let reason = format!("has {} values; at most {MOST} are allowed", values.len());
            return Err(InvalidCondition::new(reason).below("in"));
        }
        let regex = self.regex.as_deref().map(compile_regex).transpose();
        let path = self.path.as_deref().map(Pattern::with_dots).transpose();
        let not = self.not.as_ref().map(|test| test.compile(true)).transpose();
        Ok(CompiledTest {
            regex: regex.map_err(|reason| InvalidCondition::new(reason).below("regex"))?,
            path: path.map_err(|reason| InvalidCondition::new(reason).below("path"))?,
            not: not.map_err(|invalid| invalid.below("not"))?.map(Box::new),
            test: Self {
                not: None,
                ..self.clone()
            },
        })
    }
}

fn compile_regex(text: &str) -> Result<Regex, String> {
    if text.len() > MAX_REGEX_BYTES {
        return Err(format!("is longer than {MAX_REGEX_BYTES} bytes"));
    }
    let built = RegexBuilder::new(text)
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_COMPILED_BYTES)
        .build();
    built.map_err(|error| {
        if matches!(error, regex::Error::CompiledTooBig(_)) {
            return "is too large once it is compiled".to_owned();
        }
        format!("is no regular expression: {}", last_line(&error.to_string()))
    })
}

/// Returns the last line of an error, which says what is wrong; those before show the place with a mark.
fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or(text).trim_start_matches("error: ")
}

/// A condition that is ready for use.
#[derive(Debug)]
pub struct CompiledCondition {
    tables: Vec<Vec<(String, CompiledTest)>>,
}

#[derive(Debug)]
struct CompiledTest {
    test: ArgumentTest,
    regex: Option<Regex>,
    path: Option<Pattern>,
    not: Option<Box<CompiledTest>>,
}

impl CompiledCondition {
    /// Returns whether the arguments meet the condition, or it is unknown.
    pub fn may_hold(&self, args: &Map<String, Value>) -> bool {
        self.evaluate(args) != Some(false)
    }

    /// Returns whether the arguments certainly meet the condition.
    pub fn holds(&self, args: &Map<String, Value>) -> bool {
        self.evaluate(args) == Some(true)
    }

    fn evaluate(&self, args: &Map<String, Value>) -> Option<bool> {
        let table =
            |tests: &Vec<(String, CompiledTest)>| all(tests.iter().map(|(path, test)| test.outcome(args, path)));
        any(self.tables.iter().map(table))
    }
}

/// The values at the path of an argument.
enum Found<'a> {
    One(Option<&'a Value>),
    Each(Vec<Option<&'a Value>>),
    /// The path asks for the elements of something that is no list.
    NoList,
}

fn find<'a>(args: &'a Map<String, Value>, path: &str) -> Found<'a> {
    let mut parts = path.split('.');
    let mut values = vec![parts.next().and_then(|name| args.get(name))];
    let mut is_each = false;
    for part in parts {
        if part != EACH {
            values = values.into_iter().map(|value| inner(value?, part)).collect();
            continue;
        }
        let lists: Option<Vec<&Vec<Value>>> = values.into_iter().map(|value| value?.as_array()).collect();
        let Some(lists) = lists else {
            return Found::NoList;
        };
        values = lists.into_iter().flatten().map(Some).collect();
        is_each = true;
    }
    if is_each {
        Found::Each(values)
    } else {
        Found::One(values.pop().flatten())
    }
}

fn inner<'a>(value: &'a Value, part: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => fields.get(part),
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

impl CompiledTest {
    /// Returns whether the argument at this path meets the test. An argument whose name has dots is found by its name; if
    /// the path leads to another one as well, which a model could hide in that way, both have to agree.
    fn outcome(&self, args: &Map<String, Value>, path: &str) -> Option<bool> {
        let nested = || match find(args, path) {
            Found::One(value) => self.evaluate(value),
            Found::Each(values) => any(values.into_iter().map(|value| self.evaluate(value))),
            Found::NoList => None,
        };
        let Some(value) = args.get(path) else {
            return nested();
        };
        let own = self.evaluate(Some(value));
        let has_both = path.split_once('.').is_some_and(|(first, _)| args.contains_key(first));
        own.filter(|_| !has_both || nested() == own)
    }

    fn evaluate(&self, value: Option<&Value>) -> Option<bool> {
        let test = &self.test;
        let text = value.and_then(Value::as_str);
        let is = |wanted: &Value| value.is_some_and(|value| are_equal(value, wanted));
        let compares = |bound: &Number, wanted: &[Ordering]| {
            let number = value.and_then(Value::as_number)?;
            Some(wanted.contains(&compare_numbers(number, bound)?))
        };
        let outcomes = [
            test.exists.map(|exists| Some(exists == value.is_some())),
            test.equals.as_ref().map(|wanted| Some(is(wanted))),
            test.one_of.as_ref().map(|all| Some(all.iter().any(is))),
            self.regex.as_ref().map(|regex| Some(regex.is_match(text?))),
            self.path.as_ref().map(|pattern| {
                let path = normalise(text?).ok()?;
                Some(pattern.matches(path.trim_start_matches('/')))
            }),
            test.gt.as_ref().map(|bound| compares(bound, &[Ordering::Greater])),
            test.gte
                .as_ref()
                .map(|bound| compares(bound, &[Ordering::Greater, Ordering::Equal])),
            test.lt.as_ref().map(|bound| compares(bound, &[Ordering::Less])),
            test.lte
                .as_ref()
                .map(|bound| compares(bound, &[Ordering::Less, Ordering::Equal])),
            self.not
                .as_ref()
                .map(|inner| inner.evaluate(value).map(|outcome| !outcome)),
        ];
        all(outcomes.into_iter().flatten())
    }
}

/// Returns whether all outcomes are true; a false one decides, whatever is unknown.
fn all(outcomes: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let outcomes: Vec<Option<bool>> = outcomes.collect();
    if outcomes.contains(&Some(false)) {
        return Some(false);
    }
    (!outcomes.contains(&None)).then_some(true)
}

/// Returns whether one outcome is true; a true one decides, whatever is unknown.
fn any(outcomes: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    all(outcomes.map(|outcome| outcome.map(|outcome| !outcome))).map(|none| !none)
}

#[cfg(test)]
mod tests;
