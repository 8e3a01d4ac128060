//! Extractors: bodies, path variables, query parameters and pages.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, RawPathParams, Request};
use axum::http::header::HeaderMap;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::IntoParams;

use super::error::ApiError;
use super::unknown_keys;
use crate::db::PageQuery;
use crate::domain::Invalid;
use crate::domain::id::{AssistantId, CheckpointId, CronId, DecisionId, DeliveryId, InterruptId, RunId, ThreadId};
use crate::domain::json_limits::{self, LimitExceeded};
use crate::domain::serde_messages::{for_json, for_toml};
use crate::runtime::AssistantRef;

/// A JSON object as the body. Errors name the field.
pub struct ApiJson<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Bytes::from_request(request, state).await.map_err(body_error)?;
        object(&body).map(Self)
    }
}

/// A JSON object that contains an agent definition. U+0000 is not refused here, so that the definition's reader reports
/// it with all other errors.
pub struct JsonWithDefinition<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonWithDefinition<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Bytes::from_request(request, state).await.map_err(body_error)?;
        let value: Value = match json_limits::scan(&body) {
            Err(LimitExceeded::Nul) => read_as(&body)?,
            Ok(()) | Err(LimitExceeded::Depth | LimitExceeded::Values) => object(&body)?,
        };
        match (json_limits::check(&value), value) {
            (Ok(()) | Err(LimitExceeded::Nul), Value::Object(fields)) => {
                unknown_keys::check(fields.keys(), unknown_keys::fields_of::<T>())?;
                self::fields(&fields).map(Self)
            }
            (Err(exceeded @ (LimitExceeded::Depth | LimitExceeded::Values)), _) => Err(exceeded.of("body").into()),
            (Ok(()) | Err(LimitExceeded::Nul), _) => Err(Invalid::new("body", "must be a JSON object").into()),
        }
    }
}

/// A JSON list as the body. Errors name the item and its field.
pub struct ApiList<T>(pub Vec<T>);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for ApiList<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = Bytes::from_request(request, state).await.map_err(body_error)?;
        list(&body).map(Self)
    }
}

/// Reads a JSON object. It may have the keys that `T` has.
pub(super) fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let read = parse(body, b'{', "a JSON object")?;
    if let Some(known) = unknown_keys::fields_of::<T>() {
        let given: Keys = read_as(body)?;
        unknown_keys::check(given.keys(), Some(known))?;
    }
    Ok(read)
}

/// Reads a JSON list of objects. They may have the keys that `T` has.
pub(super) fn list<T: DeserializeOwned>(body: &[u8]) -> Result<Vec<T>, ApiError> {
    let read = parse(body, b'[', "a JSON list")?;
    if let Some(known) = unknown_keys::fields_of::<T>() {
        let given: Vec<Keys> = read_as(body)?;
        for (at, item) in given.iter().enumerate() {
            unknown_keys::check_item(at, item.keys(), known)?;
        }
    }
    Ok(read)
}

/// The keys of an object.
type Keys = BTreeMap<String, IgnoredAny>;

/// Maps a failure to read the body to an error.
pub(super) fn body_error(rejection: BytesRejection) -> ApiError {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        ApiError::too_large()
    } else {
        ApiError::incomplete_body()
    }
}

/// Reads JSON that begins with the byte `first`. `expected` names the expected value in errors.
fn parse<T: DeserializeOwned>(body: &[u8], first: u8, expected: &str) -> Result<T, ApiError> {
    let Some(begin) = body.iter().find(|byte| !byte.is_ascii_whitespace()) else {
        return Err(ApiError::no_body(expected));
    };
    if *begin != first {
        return Err(match serde_json::from_slice::<IgnoredAny>(body) {
            Ok(_) => Invalid::new("body", format!("must be {expected}")).into(),
            Err(error) => ApiError::bad_json(&error),
        });
    }
    within_limits(body)?;
    read_as(body)
}

/// Refuses JSON that exceeds the limits of requests, before memory is allocated for it.
///
/// # Errors
/// Names the field that contains U+0000; `body` for too deep nesting or too many values.
pub(super) fn within_limits(body: &[u8]) -> Result<(), Invalid> {
    let Err(exceeded) = json_limits::scan(body) else {
        return Ok(());
    };
    let field = match exceeded {
        // Invalid JSON is refused by the parser that follows.
        LimitExceeded::Nul => match serde_json::from_slice(body) {
            Ok(value) => json_limits::find_nul(&value),
            Err(_) => return Ok(()),
        },
        LimitExceeded::Depth | LimitExceeded::Values => None,
    };
    let field = field.map(|field| field.to_string()).filter(|field| !field.is_empty());
    Err(exceeded.of(field.unwrap_or_else(|| "body".to_owned())))
}

fn read_as<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    // To keep the path takes time, and only errors need it.
    serde_json::from_slice(body).or_else(|_| read_with_path(body))
}

fn read_with_path<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(json_error)?;
    json.end().map_err(|error| ApiError::bad_json(&error))?;
    Ok(value)
}

fn json_error(error: serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let path = error.path().to_string();
    let inner = error.into_inner();
    match inner.classify() {
        serde_json::error::Category::Data => {
            let text = inner.to_string();
            let reason = text.rfind(" at line ").map_or(text.as_str(), |at| &text[..at]);
            let reason = for_toml(reason).map_or_else(|| reason.to_owned(), |words| for_json(&words));
            Invalid::new(if path == "." { "body" } else { path.as_str() }, reason).into()
        }
        serde_json::error::Category::Syntax | serde_json::error::Category::Eof | serde_json::error::Category::Io => {
            ApiError::bad_json(&inner)
        }
    }
}

/// Reads the fields of `T` from an object that may have other fields. Errors name the field.
///
/// # Errors
/// If a field has the wrong type or is missing.
pub fn fields<T: DeserializeOwned>(object: &serde_json::Map<String, Value>) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(object).map_err(json_error)
}

/// The path of a thread.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ThreadPath {
    /// The thread.
    #[param(value_type = Uuid)]
    pub thread_id: ThreadId,
}

/// The path of a run.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct RunPath {
    /// The thread.
    #[param(value_type = Uuid)]
    pub thread_id: ThreadId,
    /// The run.
    #[param(value_type = Uuid)]
    pub run_id: RunId,
}

/// The path of a remembered decision.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ApprovalPath {
    /// The thread.
    #[param(value_type = Uuid)]
    pub thread_id: ThreadId,
    /// The remembered decision.
    #[param(value_type = Uuid)]
    pub approval_id: DecisionId,
}

/// The path of a checkpoint.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct CheckpointPath {
    /// The thread.
    #[param(value_type = Uuid)]
    pub thread_id: ThreadId,
    /// The checkpoint.
    #[param(value_type = Uuid)]
    pub checkpoint_id: CheckpointId,
}

/// The path of an interrupt.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct InterruptPath {
    /// The thread.
    #[param(value_type = Uuid)]
    pub thread_id: ThreadId,
    /// The interrupt: 32 hexadecimal digits.
    #[param(value_type = String)]
    pub interrupt_id: InterruptId,
}

/// The path of an assistant.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct AssistantPath {
    /// The assistant.
    #[param(value_type = Uuid)]
    pub assistant_id: AssistantId,
}

/// The path of a cron.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct CronPath {
    /// The cron.
    #[param(value_type = Uuid)]
    pub cron_id: CronId,
}

/// The path of an assistant, which may also be named by its `graph_id`.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct AgentPath {
    /// The assistant, or the `graph_id` of an agent definition.
    #[param(rename = "assistant_id", value_type = String)]
    #[serde(rename = "assistant_id", deserialize_with = "assistant_ref")]
    pub assistant: AssistantRef,
}

/// The path of a subagent of an assistant.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct SubgraphPath {
    /// The assistant, or the `graph_id` of an agent definition.
    #[param(rename = "assistant_id", value_type = String)]
    #[serde(rename = "assistant_id", deserialize_with = "assistant_ref")]
    pub assistant: AssistantRef,
    /// The name of the subagent, or the names down to it, separated by `|`.
    pub namespace: String,
}

/// The path of a webhook delivery.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct DeliveryPath {
    /// The delivery.
    #[param(value_type = Uuid)]
    pub delivery_id: DeliveryId,
}

/// The path of an API key.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct KeyPath {
    /// The key: the 16 digits after `adj_`.
    pub key_id: String,
}

/// The path of a user.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct UserPath {
    /// The user, a name within the caller's tenant.
    pub user_id: String,
}

/// Refuses texts of the URL that contain U+0000.
fn without_nul<'a>(mut texts: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), Invalid> {
    match texts.find(|(name, text)| name.contains('\0') || text.contains('\0')) {
        Some((name, _)) => Err(LimitExceeded::Nul.of(json_limits::without_nul(name.to_owned()))),
        None => Ok(()),
    }
}

/// The path variables of a request. `T` has a field for each of them, under the variable's name.
pub struct ApiPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for ApiPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let texts = RawPathParams::from_request_parts(parts, state).await;
        without_nul(texts.map_err(|_| ApiError::no_route())?.iter())?;
        let Path(path) = Path::from_request_parts(parts, state).await.map_err(path_error)?;
        Ok(Self(path))
    }
}

/// Maps a path error to a response. Only ids can be malformed.
fn path_error(rejection: PathRejection) -> ApiError {
    if let PathRejection::FailedToDeserializePathParams(error) = rejection
        && let ErrorKind::DeserializeError { key, .. } = error.into_kind()
    {
        return ApiError::bad_id(key.trim_end_matches("_id"));
    }
    ApiError::no_route()
}

fn assistant_ref<'de, D: Deserializer<'de>>(text: D) -> Result<AssistantRef, D::Error> {
    String::deserialize(text).map(|text| AssistantRef::read(&text))
}

/// The query parameters of a request. A parameter may occur several times.
pub struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let pairs = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let Query(pairs) = pairs.map_err(|_| ApiError::bad_parameter("query", "string", "it cannot be read"))?;
        without_nul(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
        Ok(Self(pairs))
    }
}

impl Params {
    /// The value of a parameter.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// All values of a parameter that may occur several times, or once as a JSON list.
    pub fn texts(&self, name: &str) -> Vec<String> {
        let given = self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value);
        let list = |value: &String| serde_json::from_str(value).unwrap_or_else(|_| vec![value.clone()]);
        given.flat_map(list).collect()
    }

    /// The value of a boolean parameter; false when absent.
    ///
    /// # Errors
    /// If the value is not a boolean.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name) {
            None | Some("" | "0" | "false" | "False") => Ok(false),
            Some("1" | "true" | "True") => Ok(true),
            Some(other) => Err(ApiError::bad_parameter(name, other, "must be true or false")),
        }
    }

    /// The value of a parameter that is one of several words, each with its value, or the default.
    ///
    /// # Errors
    /// If the parameter is not one of the words.
    pub fn word<T>(
        &self,
        name: &str,
        default: T,
        words: impl IntoIterator<Item = (&'static str, T)>,
    ) -> Result<T, ApiError> {
        let Some(given) = self.text(name) else {
            return Ok(default);
        };
        let mut allowed = vec![];
        for (word, value) in words {
            if word == given {
                return Ok(value);
            }
            allowed.push(word);
        }
        let expected = format!("allowed are: {}", allowed.join(", "));
        Err(ApiError::bad_parameter(name, given, &expected))
    }

    /// The page from `limit` and `offset`; `default` replaces an absent `limit`.
    ///
    /// # Errors
    /// If a value is not a number or out of bounds.
    pub fn page(&self, default: u32) -> Result<Page, ApiError> {
        Page::checked(self.number("limit")?, self.number("offset")?, default)
    }

    /// The value of a parameter that is a number from `least` to `most`.
    ///
    /// # Errors
    /// If the value is not a number or out of bounds.
    pub fn count(&self, name: &str, least: u32, most: u32) -> Result<Option<u32>, ApiError> {
        let Some(given) = self.number(name)? else {
            return Ok(None);
        };
        let count = u32::try_from(given).ok().filter(|count| (least..=most).contains(count));
        let count = count.ok_or_else(|| Invalid::new(name, format!("must be from {least} to {most}, not {given}")));
        Ok(Some(count?))
    }

    fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| ApiError::bad_parameter(name, text, "must be a whole number"))
    }
}

/// A page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// The maximum number of items.
    pub limit: u32,
    /// The number of items to skip.
    pub offset: u32,
}

impl Page {
    /// A page within bounds: `limit` from 1 to 1000, `default` when absent.
    ///
    /// # Errors
    /// If a number is out of bounds.
    pub fn checked(limit: Option<i64>, offset: Option<i64>, default: u32) -> Result<Self, ApiError> {
        let within = |name: &str, value: i64, least: i64, most: i64| {
            let number = u32::try_from(value).ok().filter(|_| (least..=most).contains(&value));
            number.ok_or_else(|| Invalid::new(name, format!("must be from {least} to {most}, not {value}")))
        };
        let limit = within("limit", limit.unwrap_or(i64::from(default)), 1, 1000)?;
        let offset = within("offset", offset.unwrap_or(0), 0, i64::from(i32::MAX))?;
        Ok(Self { limit, offset })
    }

    /// Returns the part of a list that is on the page.
    pub fn part<T>(self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        items.into_iter().skip(size(self.offset)).take(size(self.limit))
    }

    /// Returns the query for the page, of which the database reads about this number of bytes.
    pub fn query(self, bytes: usize) -> PageQuery {
        PageQuery {
            limit: self.limit.into(),
            offset: self.offset.into(),
            bytes,
        }
    }

    /// The pagination headers of this page in a list of `total` items: `x-pagination-total`, and `x-pagination-next` if
    /// there is a next page.
    pub fn headers(self, total: u64) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, number: u64| {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(number));
        };
        put("x-pagination-total", total);
        let next = u64::from(self.offset) + u64::from(self.limit);
        if next < total {
            put("x-pagination-next", next);
        }
        headers
    }

    /// The pagination headers of a page that ended after `rows_read` rows if `is_cut`. Without a total, only the next
    /// offset is set.
    pub fn truncated_headers(self, total: Option<i64>, rows_read: u32, is_cut: bool) -> HeaderMap {
        let shown = if is_cut {
            Self {
                limit: rows_read,
                ..self
            }
        } else {
            self
        };
        let mut headers = shown.headers(total.and_then(|total| u64::try_from(total).ok()).unwrap_or(0));
        if total.is_none() {
            headers.clear();
        }
        if is_cut {
            let next = u64::from(self.offset) + u64::from(rows_read);
            headers.insert(HeaderName::from_static("x-pagination-next"), HeaderValue::from(next));
        }
        headers
    }
}

/// The columns that a client selects; all when empty.
#[derive(Debug, Clone, Default)]
pub struct Select(Vec<String>);

impl Select {
    /// Selects columns out of `allowed`.
    ///
    /// # Errors
    /// If a column is unknown.
    pub fn checked(columns: Vec<String>, allowed: &[&str]) -> Result<Self, ApiError> {
        match columns
            .iter()
            .enumerate()
            .find(|(_, column)| !allowed.contains(&column.as_str()))
        {
            None => Ok(Self(columns)),
            Some((at, column)) => {
                let reason = format!("is {column:?}, but allowed are: {}", allowed.join(", "));
                Err(Invalid::new(format!("select[{at}]"), reason).into())
            }
        }
    }

    /// Returns true if all columns are selected.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the column is selected.
    pub fn has(&self, column: &str) -> bool {
        self.0.is_empty() || self.names(column)
    }

    /// Returns true if the client named this column.
    pub fn names(&self, column: &str) -> bool {
        self.0.iter().any(|expected| expected == column)
    }

    /// Removes the columns of `item` that are not selected.
    pub fn pick(&self, mut item: Value) -> Value {
        if let Value::Object(fields) = &mut item {
            fields.retain(|name, _| self.has(name));
        }
        item
    }
}

/// A 204 response.
pub fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[serde(rename = "n")]
        _n: u8,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(rename = "items", default)]
        _items: Vec<Inner>,
    }

    fn refused(body: &str) -> String {
        parse::<Outer>(body.as_bytes(), b'{', "a JSON object")
            .expect_err("the body is bad")
            .message()
            .to_owned()
    }

    #[test]
    fn invalid_json_is_refused() {
        for (body, reason) in [
            ("", "it is empty, and must be a JSON object"),
            (" \n ", "it is empty, and must be a JSON object"),
            ("{bad", "key must be a string at line 1 column 2"),
            ("{\"items\":[", "EOF while parsing a list at line 1 column 10"),
            ("{} x", "trailing characters at line 1 column 4"),
            ("nope", "expected ident at line 1 column 2"),
        ] {
            assert_eq!(
                refused(body),
                format!("Invalid JSON in request body: {reason}"),
                "{body}"
            );
        }
    }

    #[test]
    fn a_body_must_be_an_object() {
        for body in ["null", "[1]", "[]", "\"x\""] {
            assert_eq!(refused(body), "body: must be a JSON object", "{body}");
        }
    }

    #[test]
    fn an_error_names_the_field() {
        assert_eq!(
            refused(r#"{"items":[{"n":1},{"n":"x"}]}"#),
            "items[1].n: must be a whole number from 0 to 255, not a string"
        );
        assert_eq!(refused(r#"{"items":[{}]}"#), "items[0]: `n` must be given");
        assert_eq!(refused(r#"{"items":{}}"#), "items: must be a list, not an object");
    }

    #[test]
    fn unknown_keys_are_refused_at_the_top_and_ignored_below() {
        let refused = |body: &[u8]| object::<Outer>(body).err().map(|error| error.message().to_owned());
        let expected = "itens: unknown key; did you mean `items`? allowed are: items";
        assert_eq!(refused(br#"{"itens": []}"#).as_deref(), Some(expected));
        assert_eq!(refused(br#"{"items": [{"n": 1, "m": 2}]}"#), None);
        let listed = list::<Outer>(br#"[{}, {"itens": []}]"#)
            .err()
            .map(|error| error.message().to_owned());
        assert_eq!(listed, Some(format!("[1].{expected}")));
        let no_object = list::<Outer>(b"[{}, []]").expect_err("an item that is no object");
        assert!(no_object.message().starts_with("[1]: "), "{}", no_object.message());
        assert!(object::<Value>(br#"{"other": 1}"#).is_ok());
    }

    #[test]
    fn a_body_that_nests_too_deeply_is_refused() {
        let body = format!("{{\"x\":{}{}}}", "[".repeat(500), "]".repeat(500));
        assert!(
            parse::<Value>(body.as_bytes(), b'{', "a JSON object")
                .is_err_and(|error| error.message().contains("nests deeper"))
        );
    }

    #[test]
    fn a_list_parameter_is_repeated_or_json() {
        let params = [("x", "a"), ("x", "[\"b\",\"c\"]"), ("y", "d"), ("x", "[e")];
        let params = Params(params.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec());
        assert_eq!(params.texts("x"), ["a", "b", "c", "[e"]);
    }

    #[test]
    fn a_page_keeps_within_bounds() {
        assert_eq!(Page::checked(None, None, 10).ok(), Some(Page { limit: 10, offset: 0 }));
        assert!(Page::checked(Some(0), None, 10).is_err_and(|e| e.message() == "limit: must be from 1 to 1000, not 0"));
        assert!(Page::checked(Some(5000), None, 10).is_err());
        assert!(Page::checked(None, Some(-1), 10).is_err());
    }

    #[test]
    fn the_next_page_is_announced_only_if_there_is_one() {
        let page = Page { limit: 1, offset: 0 };
        assert_eq!(page.headers(2)["x-pagination-next"], "1");
        assert!(!page.headers(1).contains_key("x-pagination-next"));
        assert_eq!(page.headers(1)["x-pagination-total"], "1");
    }

    #[test]
    fn select_keeps_the_named_columns() {
        let select = Select::checked(vec!["a".into()], &["a", "b"]).expect("a is allowed");
        assert_eq!(
            select.pick(serde_json::json!({"a": 1, "b": 2})),
            serde_json::json!({"a": 1})
        );
        assert!(
            Select::checked(vec!["c".into()], &["a"]).is_err_and(|e| e.message().starts_with("select[0]: is \"c\""))
        );
    }
}
