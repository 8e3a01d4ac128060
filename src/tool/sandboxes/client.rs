//! The client of a sandbox service.

use std::fmt;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Client, Method, RequestBuilder, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::definition::SandboxServiceDefinition;
use crate::domain::Invalid;
use crate::domain::id::SandboxId;
use crate::domain::json_limits::read_foreign;
use crate::domain::text_limits::first_chars;
use crate::model::pieces::{PieceError, PieceReader};
use crate::net::describe_error;
use crate::tool::remote::server::ServiceLimits;
use crate::tool::remote::{base_url, headers};

/// The maximum size of an answer that says what went wrong, in bytes.
const MAX_ERROR_BYTES: usize = 16 * 1024;
/// The maximum length of a text of the service that a model reads, in characters.
const MAX_MESSAGE_CHARS: usize = 300;
/// The maximum number of paths in one request for a search.
pub(super) const MAX_SEARCHED: usize = 500;

/// The reason why a request to a sandbox service failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SandboxError {
    /// The service knows no such sandbox.
    Gone,
    /// The answer is larger than this number of bytes.
    TooLarge(usize),
    /// The service has refused the request.
    Refused {
        /// The word of the protocol for the reason.
        code: String,
        /// The reason for people.
        message: String,
    },
    /// No answer came that can be used.
    Failed(String),
    /// The service could not be connected to, so that it knows nothing of the request.
    Unreachable(String),
}

impl SandboxError {
    /// Returns whether the service has refused the request with this code.
    pub(super) fn has_code(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { code, .. } if code == wanted)
    }
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the sandbox is gone"),
            Self::TooLarge(most) => write!(f, "the answer of the sandbox service is larger than {most} bytes"),
            Self::Refused { code, message } if message.is_empty() => {
                write!(f, "the sandbox service has refused it ({code})")
            }
            Self::Refused { message, .. } => write!(f, "the sandbox service has refused it: {message}"),
            Self::Failed(reason) | Self::Unreachable(reason) => write!(f, "the sandbox service {reason}"),
        }
    }
}

/// The answer to a request that the service has refused.
#[derive(Deserialize)]
struct Refusal {
    code: String,
    #[serde(default)]
    message: String,
}

/// The kinds of entries of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EntryKind {
    File,
    Directory,
}

/// An entry of a directory.
#[derive(Debug, Deserialize)]
pub(super) struct SandboxEntry {
    pub(super) path: String,
    #[serde(rename = "type")]
    pub(super) kind: EntryKind,
    /// The size of a file in bytes; none if the service does not tell it.
    #[serde(default, deserialize_with = "read_size")]
    pub(super) size: Option<u64>,
}

/// Reads the size of a file. A service may say something else there, which was never a part of the protocol.
fn read_size<'de, D: Deserializer<'de>>(size: D) -> Result<Option<u64>, D::Error> {
    Ok(Value::deserialize(size)?.as_u64())
}

/// The entries of a directory.
#[derive(Debug, Deserialize)]
pub(super) struct SandboxEntries {
    pub(super) entries: Vec<SandboxEntry>,
    #[serde(default)]
    pub(super) truncated: bool,
}

/// A question for the entries of a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryQuery<'a> {
    /// The directory, or a file.
    pub(super) path: &'a str,
    /// True for the entries of all directories below, too.
    pub(super) is_recursive: bool,
    /// True for all entries; false leaves out what searches leave out.
    pub(super) is_complete: bool,
    /// The maximum number of entries.
    pub(super) max: usize,
}

/// A line that a search has found.
#[derive(Debug, Deserialize)]
pub(super) struct SandboxMatch {
    pub(super) path: String,
    /// The number of the line, from 1 on.
    pub(super) line: usize,
    pub(super) text: String,
}

/// The lines that a search has found.
#[derive(Debug, Deserialize)]
pub(super) struct SandboxMatches {
    pub(super) matches: Vec<SandboxMatch>,
    #[serde(default)]
    pub(super) truncated: bool,
}

/// A file with the headers of its answer.
#[derive(Debug)]
pub(super) struct FileBody {
    pub(super) bytes: Vec<u8>,
    pub(super) headers: HeaderMap,
}

/// A sandbox service.
pub struct SandboxService {
    name: String,
    client: Client,
    url: Url,
    headers: HeaderMap,
    timeout: Duration,
    pub(super) limits: ServiceLimits,
}

impl SandboxService {
    /// Creates the client of a service.
    ///
    /// # Errors
    /// The field of the definition that is invalid.
    pub fn new(
        name: &str,
        definition: &SandboxServiceDefinition,
        client: Client,
        limits: ServiceLimits,
    ) -> Result<Self, Invalid> {
        let url = base_url(&definition.url)?;
        let timeout = Duration::try_from_secs_f64(definition.timeout_s);
        Ok(Self {
            name: name.to_owned(),
            client,
            url,
            headers: headers(&definition.headers.0)?,
            timeout: timeout.map_err(|_| Invalid::new("timeout_s", "is no duration"))?,
            limits,
        })
    }

    /// Returns the name in the configuration.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address of a sandbox, or of a part of it.
    pub(super) fn address(&self, id: SandboxId, part: Option<&str>) -> Url {
        let mut url = self.url.clone();
        // An address that cannot have a path was refused when the service was created.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty()
                .extend(["sandboxes", id.to_string().as_str()])
                .extend(part);
        }
        url
    }

    /// Returns a request with the headers of the configuration.
    pub(super) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.client.request(method, url).headers(self.headers.clone())
    }

    /// Returns a request about one path of a sandbox.
    fn about(&self, method: Method, id: SandboxId, part: &str, path: &str) -> RequestBuilder {
        let mut url = self.address(id, Some(part));
        url.query_pairs_mut().append_pair("path", path);
        self.request(method, url)
    }

    /// Creates a sandbox. One that is there already stays as it is.
    pub(super) async fn create(&self, id: SandboxId) -> Result<(), SandboxError> {
        let request = self.request(Method::PUT, self.address(id, None)).json(&json!({}));
        self.send(request, MAX_ERROR_BYTES).await.map(drop)
    }

    /// Ends a sandbox with all of its files.
    pub(super) async fn end(&self, id: SandboxId) -> Result<(), SandboxError> {
        let request = self.request(Method::DELETE, self.address(id, None));
        self.send(request, MAX_ERROR_BYTES).await.map(drop)
    }

    /// Finds out whether the service answers as a sandbox service does, without creating a sandbox.
    ///
    /// # Errors
    /// A text for the operator.
    pub async fn check(&self) -> Result<(), String> {
        let query = EntryQuery {
            path: "/",
            is_recursive: false,
            is_complete: false,
            max: 1,
        };
        match self.entries(SandboxId(uuid::Uuid::nil()), query).await {
            Ok(_) | Err(SandboxError::Gone) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads a file of up to `most` bytes.
    pub(super) async fn read(&self, id: SandboxId, path: &str, most: usize) -> Result<FileBody, SandboxError> {
        self.send(self.about(Method::GET, id, "files", path), most).await
    }

    /// Writes a file in the place of one with the content `before`; none if there is no file.
    pub(super) async fn write(
        &self,
        id: SandboxId,
        path: &str,
        content: Vec<u8>,
        before: Option<&[u8]>,
    ) -> Result<(), SandboxError> {
        let request = self.about(Method::PUT, id, "files", path);
        let request = match before {
            Some(before) => request.header(IF_MATCH, entity_tag(before)),
            None => request.header(IF_NONE_MATCH, "*"),
        };
        let request = request.header(CONTENT_TYPE, "application/octet-stream").body(content);
        self.send(request, MAX_ERROR_BYTES).await.map(drop)
    }

    /// Deletes a file, or a directory with everything in it. With `before`, a file is deleted only if it has still that
    /// content.
    pub(super) async fn delete(&self, id: SandboxId, path: &str, before: Option<&[u8]>) -> Result<(), SandboxError> {
        let request = self.about(Method::DELETE, id, "files", path);
        let request = match before {
            Some(before) => request.header(IF_MATCH, entity_tag(before)),
            None => request,
        };
        self.send(request, MAX_ERROR_BYTES).await.map(drop)
    }

    /// Returns the entries of a directory.
    pub(super) async fn entries(&self, id: SandboxId, query: EntryQuery<'_>) -> Result<SandboxEntries, SandboxError> {
        let mut url = self.address(id, Some("entries"));
        url.query_pairs_mut()
            .append_pair("path", query.path)
            .append_pair("recursive", &query.is_recursive.to_string())
            .append_pair("all", &query.is_complete.to_string())
            .append_pair("max", &query.max.to_string());
        self.ask(self.request(Method::GET, url)).await
    }

    /// Searches these files, at most [`MAX_SEARCHED`], for lines with a text.
    pub(super) async fn search(
        &self,
        id: SandboxId,
        text: &str,
        paths: &[String],
        max: usize,
    ) -> Result<SandboxMatches, SandboxError> {
        let url = self.address(id, Some("search"));
        let body = json!({"text": text, "paths": paths, "max": max});
        self.ask(self.request(Method::POST, url).json(&body)).await
    }

    /// Sends a request whose answer is JSON.
    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, SandboxError> {
        let request = request.header(ACCEPT, "application/json");
        let answer = self.send(request, self.limits.max_bytes).await?;
        read_foreign(&answer.bytes)
            .map_err(|error| SandboxError::Failed(format!("answered with something that cannot be used: it {error}")))
    }

    /// Sends a request and reads its answer of up to `most` bytes.
    async fn send(&self, request: RequestBuilder, most: usize) -> Result<FileBody, SandboxError> {
        let answered = timeout(self.timeout, async {
            let mut reader = PieceReader::open(request, self.limits.pieces)
                .await
                .map_err(unanswered)?;
            if !reader.head().status().is_success() {
                return Err(refusal(&mut reader).await);
            }
            let headers = reader.head().headers().clone();
            let bytes = body(&mut reader, most).await?;
            Ok(FileBody { bytes, headers })
        });
        answered.await.unwrap_or_else(|_| {
            let seconds = self.timeout.as_secs_f64();
            Err(SandboxError::Failed(format!(
                "did not answer within {seconds} s (the setting `timeout_s` in [sandboxes.{}])",
                self.name
            )))
        })
    }
}

/// Returns the `ETag` of a file with this content.
fn entity_tag(content: &[u8]) -> String {
    format!("\"{}\"", hex::encode(Sha256::digest(content)))
}

/// Returns the error of a request without an answer.
pub(super) fn unanswered(error: PieceError) -> SandboxError {
    match error {
        PieceError::Silent(limit) => SandboxError::Failed(format!("does not answer: {limit}")),
        PieceError::Broken(error) if error.is_connect() => {
            SandboxError::Unreachable(format!("cannot be reached: {}", describe_error(&error)))
        }
        PieceError::Broken(error) => SandboxError::Failed(format!("broke off: {}", describe_error(&error))),
    }
}

/// Returns the error of an answer that is no success.
pub(super) async fn refusal(reader: &mut PieceReader) -> SandboxError {
    let status = reader.head().status();
    let body = body(reader, MAX_ERROR_BYTES).await;
    let read: Option<Refusal> = body.ok().and_then(|bytes| read_foreign(&bytes).ok());
    match read {
        Some(refusal) if refusal.code == "sandbox_not_found" => SandboxError::Gone,
        Some(refusal) if !refusal.code.is_empty() => SandboxError::Refused {
            code: plain(&refusal.code),
            message: plain(&refusal.message),
        },
        Some(_) | None if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN => {
            SandboxError::Failed(format!("does not accept the credentials (status {})", status.as_u16()))
        }
        Some(_) | None => SandboxError::Failed(format!("answered with status {}", status.as_u16())),
    }
}

/// Returns a text of the service for a model: bounded, and in one line.
pub(super) fn plain(text: &str) -> String {
    let text = first_chars(text, MAX_MESSAGE_CHARS).chars();
    text.map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

async fn body(reader: &mut PieceReader, most: usize) -> Result<Vec<u8>, SandboxError> {
    let mut bytes = vec![];
    while let Some(piece) = reader.next().await.map_err(unanswered)? {
        if bytes.len() + piece.len() > most {
            return Err(SandboxError::TooLarge(most));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}
