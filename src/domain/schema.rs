//! JSON Schemas from clients, tools and remote servers, admitted and applied within limits.
//!
//! A small schema can cost any amount of memory: with two references to the previous definition in each of n
//! definitions, it yields 2^n errors. A schema is therefore admitted only if no value is checked against more than
//! [`MAX_CHECKS_PER_VALUE`] of its parts with all references followed, if it has at most [`MAX_EXPANDED_PARTS`] parts
//! then, and if neither its text nor its chains of references are too long. Validation first asks only whether a value
//! matches, which is cheap since the library caches the result of each reference. Errors are computed only where their
//! number is bounded.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

use super::Invalid;
use super::json_limits;
use super::json_size::value_size;
use super::schema_text::SchemaText;

/// The maximum size of a schema, in bytes of its texts, numbers and brackets. The largest schemas of published MCP
/// servers are below a fifth of it.
pub const MAX_BYTES: usize = 256 * 1024;
/// The maximum number of parts of a schema that one value may be checked against, with references followed.
pub const MAX_CHECKS_PER_VALUE: u64 = 1_000;
/// The maximum number of parts of a schema with each reference replaced by its target, a form that some providers
/// require for tools.
pub const MAX_EXPANDED_PARTS: u64 = 20_000;
/// The maximum nesting of a schema, in levels, with references followed. The schema compiler recurses once for each
/// level.
const MAX_EXPANDED_DEPTH: usize = 128;
/// The maximum number of nested parts that apply to the same value: references and alternatives. Validation recurses
/// this often for each level of the value.
const MAX_DEPTH_PER_VALUE: usize = 32;
/// The maximum number of regular expressions in a schema.
const MAX_PATTERNS: usize = 100;
/// The maximum length of a regular expression, in bytes.
const MAX_PATTERN_BYTES: usize = 2_000;
/// The maximum size of a compiled regular expression, in bytes.
const MAX_COMPILED_PATTERN_BYTES: usize = 1024 * 1024;
/// The maximum number of backtracking steps of a regular expression with look-around or back-references.
const MAX_BACKTRACKS: usize = 10_000;
/// The maximum number of checks in one validation: values times the parts that each is checked against. Takes about a
/// second.
const MAX_CHECKS: u64 = 20_000_000;
/// The maximum number of checks for which errors are computed. One error takes up to 3 KiB.
const MAX_CHECKS_EXPLAINED: u64 = 10_000;
/// The number of checks from which a validation belongs on a blocking thread. Takes about 5 ms.
const MANY_CHECKS: u64 = 100_000;
/// The number of compiled schemas that are kept.
const MAX_KEPT: usize = 16;
/// The maximum size of a schema that is kept, in bytes. Schemas with regular expressions are not kept.
const MAX_KEPT_BYTES: usize = 32 * 1024;

/// The schemas that were compiled last.
static KEPT: KeptSchemas = KeptSchemas::new();

/// A compiled schema within the limits.
pub struct Schema {
    validator: Validator,
    size: Size,
    /// True if it has regular expressions.
    has_patterns: bool,
}

/// The error for a schema that is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaError {
    /// The JSON pointer of the part; empty for the whole schema.
    pub place: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl SchemaError {
    fn whole(reason: impl Into<String>) -> Self {
        Self {
            place: String::new(),
            reason: reason.into(),
        }
    }
}

/// The result of a validation.
pub enum SchemaCheck<'a> {
    /// The value matches.
    Fits,
    /// The value does not match, with the errors.
    Wrong(Vec<ValidationError<'a>>),
    /// The value does not match, or is too large to be checked; only this text explains it.
    Unexplained(&'static str),
}

/// The text for a value that may have too many errors.
const UNEXPLAINED: &str = "does not fit its schema, which has too many alternatives to say where";
/// The text for a value that is not checked.
const TOO_LARGE: &str = "is too large to be checked against its schema";

/// Compiled schemas by their texts, the last used one last. Questions about the same calls have the same schema, and to
/// compile it takes longer than to check their answers.
struct KeptSchemas(Mutex<VecDeque<KeptSchema>>);

struct KeptSchema {
    text: SchemaText,
    compiled: Arc<Schema>,
}

impl KeptSchemas {
    const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// Returns the compiled schema of this text.
    fn find(&self, schema: &SchemaText) -> Option<Arc<Schema>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().rposition(|known| known.text == *schema)?;
        let found = kept.remove(at)?;
        let compiled = Arc::clone(&found.compiled);
        kept.push_back(found);
        Some(compiled)
    }

    fn keep(&self, schema: &SchemaText, compiled: &Arc<Schema>) {
        let kept_schema = KeptSchema {
            text: schema.clone(),
            compiled: Arc::clone(compiled),
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(kept_schema);
        if kept.len() > MAX_KEPT {
            kept.pop_front();
        }
    }

    /// Returns a compiled schema, and compiles it if it is not kept.
    fn compile(&self, schema: &SchemaText) -> Result<Arc<Schema>, SchemaError> {
        if let Some(compiled) = self.find(schema) {
            return Ok(compiled);
        }
        let value = schema.parse();
        let compiled = Arc::new(Schema::compile(&value)?);
        // A short regular expression may take a megabyte.
        if !compiled.has_patterns && value_size(&value) <= MAX_KEPT_BYTES {
            self.keep(schema, &compiled);
        }
        Ok(compiled)
    }
}

impl Schema {
    /// Compiles a schema like [`Self::compile`], unless it is one of the last that were compiled here.
    ///
    /// # Errors
    /// As [`Self::compile`].
    pub fn compile_once(schema: &SchemaText) -> Result<Arc<Self>, SchemaError> {
        KEPT.compile(schema)
    }

    /// Compiles a schema.
    ///
    /// # Errors
    /// Returns an error if the value is no JSON Schema, or exceeds a limit.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        json_limits::check(schema).map_err(|exceeded| SchemaError::whole(exceeded.to_string()))?;
        let mut texts = Texts::default();
        texts.read(schema)?;
        let size = Measure {
            texts: &texts,
            known: HashMap::new(),
            size: Size::default(),
        }
        .take(schema)?;
        let patterns = PatternOptions::fancy_regex()
            .backtrack_limit(MAX_BACKTRACKS)
            .size_limit(MAX_COMPILED_PATTERN_BYTES)
            .dfa_size_limit(MAX_COMPILED_PATTERN_BYTES);
        let built = jsonschema::options().with_pattern_options(patterns).build(schema);
        let validator = built.map_err(|error| SchemaError {
            place: error.instance_path().to_string(),
            reason: error.to_string(),
        })?;
        Ok(Self {
            validator,
            size,
            has_patterns: texts.patterns > 0,
        })
    }

    /// Validates a value.
    pub fn validate<'a>(&'a self, value: &'a Value) -> SchemaCheck<'a> {
        let checks = self.checks(value);
        if checks > MAX_CHECKS {
            return SchemaCheck::Unexplained(TOO_LARGE);
        }
        if self.validator.is_valid(value) {
            return SchemaCheck::Fits;
        }
        if self.size.is_linear() {
            if checks <= MAX_CHECKS_EXPLAINED {
                return SchemaCheck::Wrong(self.validator.iter_errors(value).collect());
            }
            if self.size.per_value <= 1 {
                // Without alternatives the first error can be computed alone.
                return self
                    .validator
                    .validate(value)
                    .err()
                    .map_or(SchemaCheck::Fits, |error| SchemaCheck::Wrong(vec![error]));
            }
        }
        SchemaCheck::Unexplained(UNEXPLAINED)
    }

    /// Validates the value of `field`.
    ///
    /// # Errors
    /// Returns the first part that does not match.
    pub fn check(&self, field: &str, value: &Value) -> Result<(), Invalid> {
        match self.validate(value) {
            SchemaCheck::Fits => Ok(()),
            SchemaCheck::Wrong(errors) => {
                let Some(error) = errors.first() else { return Ok(()) };
                let place = error.instance_path().to_string().replace('/', ".");
                Err(Invalid::new(format!("{field}{place}"), error.to_string()))
            }
            SchemaCheck::Unexplained(reason) => Err(Invalid::new(field, reason)),
        }
    }

    /// Returns whether the validation of this value is so expensive that it belongs on a blocking thread.
    pub fn takes_long(&self, value: &Value) -> bool {
        self.checks(value) > MANY_CHECKS
    }

    /// Returns the maximum number of checks for this value. For a recursive schema it is an estimate, since the results
    /// of references are cached.
    fn checks(&self, value: &Value) -> u64 {
        self.size.per_value.saturating_mul(count(value))
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// Returns whether a schema means the same inside another one. References and ids would point elsewhere.
pub fn can_be_embedded(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .all(|(name, field)| !name.starts_with('$') && can_be_embedded(field)),
        Value::Array(items) => items.iter().all(can_be_embedded),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Counts the values inside a value, itself included.
fn count(value: &Value) -> u64 {
    let inner = match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    inner + 1
}

/// The size of a schema with its references followed.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// The maximum number of parts that one value is checked against.
    per_value: u64,
    /// True if the schema refers to itself, or to a schema that cannot be measured.
    is_recursive: bool,
    /// True if a value may be checked in more than one way.
    has_alternatives: bool,
}

impl Size {
    /// Returns whether the number of errors is bounded by the number of parts for each value.
    fn is_linear(self) -> bool {
        !self.is_recursive || !self.has_alternatives
    }
}

/// The texts of a schema: their length, the regular expressions, and the named locations.
#[derive(Default)]
struct Texts<'a> {
    bytes: usize,
    patterns: usize,
    /// Locations with an `$anchor`, by its name without `#`.
    anchors: HashMap<&'a str, &'a Value>,
    /// Nested schemas with an `$id`.
    resources: HashMap<&'a str, &'a Value>,
}

impl<'a> Texts<'a> {
    fn read(&mut self, schema: &'a Value) -> Result<(), SchemaError> {
        let mut open = vec![schema];
        while let Some(value) = open.pop() {
            self.bytes += match value {
                Value::String(text) => text.len() + 3,
                Value::Number(_) => 8,
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => 5,
            };
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => {
                    self.bytes += fields.keys().map(|key| key.len() + 4).sum::<usize>();
                    self.read_fields(value, fields)?;
                    open.extend(fields.values());
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        if self.bytes > MAX_BYTES {
            return Err(SchemaError::whole(format!(
                "the schema is longer than {MAX_BYTES} bytes"
            )));
        }
        Ok(())
    }

    fn read_fields(&mut self, place: &'a Value, fields: &'a Map<String, Value>) -> Result<(), SchemaError> {
        let own = fields.get("pattern").and_then(Value::as_str);
        let of_names = fields.get("patternProperties").and_then(Value::as_object);
        for pattern in own.into_iter().chain(
            of_names
                .into_iter()
                .flat_map(|patterns| patterns.keys().map(String::as_str)),
        ) {
            self.patterns += 1;
            if pattern.len() > MAX_PATTERN_BYTES {
                let reason = format!("a regular expression in it is longer than {MAX_PATTERN_BYTES} bytes");
                return Err(SchemaError::whole(reason));
            }
            if self.patterns > MAX_PATTERNS {
                return Err(SchemaError::whole(format!(
                    "the schema has more than {MAX_PATTERNS} regular expressions"
                )));
            }
        }
        for name in ["$anchor", "$dynamicAnchor"]
            .iter()
            .filter_map(|key| fields.get(*key)?.as_str())
        {
            self.anchors.insert(name, place);
        }
        for id in ["$id", "id"].iter().filter_map(|key| fields.get(*key)?.as_str()) {
            match id.strip_prefix('#') {
                // Older drafts name locations this way.
                Some(name) => self.anchors.insert(name, place),
                None => self.resources.insert(id.trim_end_matches('#'), place),
            };
        }
        Ok(())
    }

    /// Returns the nested schema with this `$id`, which may be given from its last segment on.
    fn resource(&self, address: &str) -> Option<&'a Value> {
        let exact = self.resources.get(address).copied();
        exact.or_else(|| {
            let is_meant = |id: &str| id.strip_suffix(address).is_some_and(|before| before.ends_with('/'));
            self.resources
                .iter()
                .find(|(id, _)| is_meant(id))
                .map(|(_, place)| *place)
        })
    }
}

/// The target of a reference.
enum Target<'a> {
    /// A part of the schema, and the nested schema that contains it.
    Part(&'a Value, &'a Value),
    /// A schema that is built into the library.
    Builtin,
    /// No target.
    Missing,
}

/// The measured size of a part of a schema.
#[derive(Clone, Copy)]
struct Part {
    /// The number of parts that the value of this part is checked against, this one included.
    same: u64,
    /// The maximum number of parts that any value inside that value is checked against.
    inside: u64,
    /// The number of parts below, this one included, each counted for every reference to it.
    parts: u64,
    /// The number of nested parts that apply to the same value.
    per_value_depth: usize,
    /// The number of levels below, this one included.
    depth: usize,
}

/// The levels above a part of a schema.
#[derive(Clone, Copy, Default)]
struct LevelsAbove {
    /// Their number.
    depth: usize,
    /// The number of those directly above that apply to the same value.
    in_row: usize,
}

impl LevelsAbove {
    fn check(self) -> Result<(), SchemaError> {
        if self.depth > MAX_EXPANDED_DEPTH {
            let reason = format!(
                "the schema is too large: it nests deeper than {MAX_EXPANDED_DEPTH} levels with all references followed"
            );
            return Err(SchemaError::whole(reason));
        }
        if self.in_row > MAX_DEPTH_PER_VALUE {
            return Err(SchemaError::whole(format!(
                "the schema is too large: more than {MAX_DEPTH_PER_VALUE} references and alternatives in it follow upon \
                 each other for one value"
            )));
        }
        Ok(())
    }
}

/// Measures a schema. Each part is visited once, however often it is referred to.
struct Measure<'a> {
    texts: &'a Texts<'a>,
    /// The measured parts, by their addresses in memory; none for a part that is being measured.
    known: HashMap<*const Value, Option<Part>>,
    size: Size,
}

/// Keywords with a list of schemas that apply to the same value.
const SAME_VALUE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords with a schema that applies to the same value.
const SAME_VALUE: [&str; 4] = ["not", "if", "then", "else"];
/// Keywords with schemas, by name, that apply to the same value.
const SAME_VALUE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords with a schema that applies to children of the value that other keywords may apply to, too.
const SHARED_CHILDREN: [&str; 4] = ["propertyNames", "contains", "unevaluatedItems", "unevaluatedProperties"];
/// Keywords of which only one applies to each child of the value.
const EXCLUSIVE_CHILDREN: [&str; 3] = ["additionalProperties", "items", "additionalItems"];

impl<'a> Measure<'a> {
    fn take(mut self, schema: &'a Value) -> Result<Size, SchemaError> {
        let whole = self.part(schema, schema, LevelsAbove::default())?;
        self.size.per_value = whole.checks();
        Ok(self.size)
    }

    /// Measures a part. `root` is the nested schema that contains it.
    fn part(&mut self, schema: &'a Value, root: &'a Value, above: LevelsAbove) -> Result<Part, SchemaError> {
        let part = match self.known.get(&std::ptr::from_ref(schema)) {
            Some(Some(part)) => *part,
            Some(None) => {
                self.size.is_recursive = true;
                Part {
                    same: 0,
                    inside: 0,
                    parts: 0,
                    per_value_depth: 0,
                    depth: 0,
                }
            }
            None => {
                above.check()?;
                self.known.insert(std::ptr::from_ref(schema), None);
                let part = self.look_into(schema, root, above)?;
                self.known.insert(std::ptr::from_ref(schema), Some(part));
                part
            }
        };
        let deepest = LevelsAbove {
            depth: above.depth + part.depth,
            in_row: above.in_row + part.per_value_depth,
        };
        deepest.check()?;
        if part.checks() > MAX_CHECKS_PER_VALUE {
            return Err(SchemaError::whole(format!(
                "the schema is too large: with all references followed, a value is checked against more than \
                 {MAX_CHECKS_PER_VALUE} parts of it. Have fewer alternatives (`anyOf`, `oneOf`, `allOf`, `$ref`)"
            )));
        }
        if part.parts > MAX_EXPANDED_PARTS {
            return Err(SchemaError::whole(format!(
                "the schema is too large: with all references followed, it has more than {MAX_EXPANDED_PARTS} parts"
            )));
        }
        Ok(part)
    }

    fn look_into(&mut self, schema: &'a Value, root: &'a Value, above: LevelsAbove) -> Result<Part, SchemaError> {
        let mut part = Part {
            same: 1,
            inside: 0,
            parts: 1,
            per_value_depth: 1,
            depth: 1,
        };
        let Value::Object(fields) = schema else { return Ok(part) };
        let is_resource = fields
            .get("$id")
            .and_then(Value::as_str)
            .is_some_and(|id| !id.starts_with('#'));
        let root = if is_resource { schema } else { root };
        let same_value = LevelsAbove {
            depth: above.depth + 1,
            in_row: above.in_row + 1,
        };
        let child_value = LevelsAbove {
            in_row: 0,
            ..same_value
        };
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let Some(to) = fields.get(keyword).and_then(Value::as_str) else {
                continue;
            };
            if keyword != "$ref" {
                self.size.is_recursive = true;
            }
            match self.follow(to, root) {
                Target::Part(place, root) => {
                    let found = self.part(place, root, same_value)?;
                    part.add(found);
                }
                Target::Builtin => {
                    self.size.is_recursive = true;
                    self.size.has_alternatives = true;
                }
                Target::Missing => {
                    return Err(SchemaError::whole(format!(
                        "the reference `{to}` leads nowhere in the schema"
                    )));
                }
            }
        }
        for alternative in on_same(fields) {
            self.size.has_alternatives = true;
            let found = self.part(alternative, root, same_value)?;
            part.add(found);
        }
        let mut shared = 0;
        let mut own = 0;
        for inner in on_shared(fields) {
            self.size.has_alternatives = true;
            let found = self.part(inner, root, child_value)?;
            shared += found.checks();
            part.parts += found.parts;
            part.depth = part.depth.max(found.depth + 1);
        }
        for inner in on_own(fields) {
            let found = self.part(inner, root, child_value)?;
            own = own.max(found.checks());
            part.parts += found.parts;
            part.depth = part.depth.max(found.depth + 1);
        }
        part.inside += shared + own;
        Ok(part)
    }

    /// Resolves a reference inside the nested schema `root`.
    fn follow(&self, to: &str, root: &'a Value) -> Target<'a> {
        let (address, fragment) = to.split_once('#').unwrap_or((to, ""));
        let root = match address {
            "" => root,
            address => match self.texts.resource(address) {
                Some(resource) => resource,
                None if address.contains("://json-schema.org/") => return Target::Builtin,
                None => return Target::Missing,
            },
        };
        if fragment.is_empty() {
            return Target::Part(root, root);
        }
        let Some(pointer) = fragment.strip_prefix('/') else {
            return self
                .texts
                .anchors
                .get(fragment)
                .map_or(Target::Missing, |place| Target::Part(place, root));
        };
        let mut at = (root, root);
        for step in pointer.split('/') {
            let Some(inner) = enter(at.0, step) else {
                return Target::Missing;
            };
            let is_resource = inner
                .get("$id")
                .and_then(Value::as_str)
                .is_some_and(|id| !id.starts_with('#'));
            at = (inner, if is_resource { inner } else { at.1 });
        }
        Target::Part(at.0, at.1)
    }
}

impl Part {
    /// Returns the maximum number of parts that one value is checked against.
    fn checks(self) -> u64 {
        self.same.max(self.inside)
    }

    /// Adds a part that applies to the same value.
    fn add(&mut self, other: Self) {
        self.same += other.same;
        self.inside += other.inside;
        self.parts += other.parts;
        self.per_value_depth = self.per_value_depth.max(other.per_value_depth + 1);
        self.depth = self.depth.max(other.depth + 1);
    }
}

/// Follows one segment of a JSON pointer.
fn enter<'a>(place: &'a Value, step: &str) -> Option<&'a Value> {
    let plain = unescaped(step).replace("~1", "/").replace("~0", "~");
    match place {
        Value::Object(fields) => fields.get(&plain),
        Value::Array(items) => items.get(plain.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Returns the text of a reference with `%xx` decoded.
fn unescaped(text: &str) -> String {
    let mut bytes = vec![];
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        match after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(b'%');
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

fn on_same(fields: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = SAME_VALUE_LISTS
        .iter()
        .filter_map(|keyword| fields.get(*keyword)?.as_array())
        .flatten();
    let single = SAME_VALUE.iter().filter_map(|keyword| fields.get(*keyword));
    let maps = SAME_VALUE_MAPS
        .iter()
        .filter_map(|keyword| fields.get(*keyword)?.as_object());
    lists.chain(single).chain(maps.flat_map(Map::values))
}

fn on_shared(fields: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let patterns = fields.get("patternProperties").and_then(Value::as_object);
    let patterns = patterns.into_iter().flat_map(Map::values);
    patterns.chain(SHARED_CHILDREN.iter().filter_map(|keyword| fields.get(*keyword)))
}

fn on_own(fields: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let properties = fields
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::values);
    let places = ["prefixItems", "items"]
        .iter()
        .filter_map(|keyword| fields.get(*keyword)?.as_array())
        .flatten();
    let single = EXCLUSIVE_CHILDREN
        .iter()
        .filter_map(|keyword| fields.get(*keyword))
        .filter(|inner| !inner.is_array());
    properties.chain(places).chain(single)
}

#[cfg(test)]
mod tests;
