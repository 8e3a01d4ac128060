//! The conversion of content blocks for a provider: text, images, audio and files in all spellings of clients.

use rig_core::message::{
    Audio, AudioMediaType, Document, DocumentMediaType, DocumentSourceKind, Image, ImageMediaType, MimeType,
    ToolResultContent, UserContent,
};
use serde_json::{Value, json};

use super::file_names::TITLE;
use crate::domain::media::{MediaKind, description, file_name, media_type};
use crate::domain::message::Content;
use crate::model::ModelError;

/// The text for a human message without any. rig-core would leave out the message, and the model would be asked
/// to go on with its own answer, which some providers refuse.
const EMPTY_MESSAGE: &str = "(empty message)";

/// The types of blocks that are sent as text.
const TEXT_TYPES: [&str; 4] = ["text", "input_text", "output_text", "text-plain"];

/// Converts the content of a human message. A block of an unknown type is an error that names it: without the block the
/// model would answer another question. Blank content is sent as [`EMPTY_MESSAGE`]; rig-core leaves out blank texts
/// beside other blocks.
pub(super) fn human(content: &Content) -> Result<Vec<UserContent>, ModelError> {
    let refused = |message| ModelError::UnsupportedContent { message };
    let sent: Vec<UserContent> = match content {
        Content::Text(text) => vec![UserContent::text(text.as_str())],
        Content::Blocks(blocks) => {
            let sent = blocks.iter().map(|block| human_block(block).map_err(refused));
            sent.collect::<Result<_, _>>()?
        }
    };
    let is_blank = |part: &UserContent| matches!(part, UserContent::Text(text) if text.text.trim().is_empty());
    if sent.iter().all(is_blank) {
        return Ok(vec![UserContent::text(EMPTY_MESSAGE)]);
    }
    Ok(sent)
}

/// The result of a tool for a provider.
pub(super) struct SentResult {
    /// The result itself: texts, images and JSON.
    pub(super) parts: Vec<ToolResultContent>,
    /// Files and audio, each behind a text that describes it. rig-core has no place for them in a result, so they follow
    /// the results in a message of the user, as rig-core itself does with images where results have none.
    pub(super) attached: Vec<UserContent>,
}

/// Converts the result of a tool. A block that is neither text nor media is sent as JSON. Blank texts beside other
/// blocks are left out, since Anthropic refuses them. A result without anything else is an empty text, for which
/// rig-core sends words that say so.
pub(super) fn tool(content: &Content) -> SentResult {
    let mut attached = vec![];
    let mut parts: Vec<ToolResultContent> = match content {
        Content::Text(text) => vec![ToolResultContent::text(text.as_str())],
        Content::Blocks(blocks) => blocks.iter().map(|block| tool_block(block, &mut attached)).collect(),
    };
    parts.retain(|part| !matches!(part, ToolResultContent::Text(text) if text.text.trim().is_empty()));
    if parts.is_empty() {
        parts.push(ToolResultContent::text(""));
    }
    SentResult { parts, attached }
}

fn tool_block(block: &Value, attached: &mut Vec<UserContent>) -> ToolResultContent {
    match human_block(block) {
        Ok(UserContent::Text(text)) => ToolResultContent::Text(text),
        Ok(UserContent::Image(image)) => ToolResultContent::Image(image),
        Ok(media @ (UserContent::Audio(_) | UserContent::Document(_))) => {
            let described = description(block);
            attached.push(UserContent::text(format!(
                "[The {described} that a tool has returned:]"
            )));
            attached.push(media);
            ToolResultContent::text(format!("[The {described} follows after the results.]"))
        }
        Ok(UserContent::ToolResult(_) | UserContent::Video(_)) | Err(_) => ToolResultContent::json(block.clone()),
    }
}

/// Returns the reason why no provider supports a content block of a human message; none if one may support it.
pub(super) fn refusal(block: &Value) -> Option<String> {
    human_block(block).err()
}

/// Converts one block, or returns the reason why it cannot be sent.
fn human_block(block: &Value) -> Result<UserContent, String> {
    if let Value::String(text) = block {
        return Ok(UserContent::text(text.as_str()));
    }
    let kind = block
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or(if block.get("text").is_some() { "text" } else { "" });
    let known = match MediaKind::of_type(kind) {
        Some(MediaKind::Image) => image(block),
        Some(MediaKind::File) => file(block),
        Some(MediaKind::Audio) => audio(block),
        None if TEXT_TYPES.contains(&kind) => block.get("text").and_then(Value::as_str).map(UserContent::text),
        Some(MediaKind::Video) | None => None,
    };
    let sent = known.ok_or_else(|| match media_type(block).filter(|_| !kind.is_empty()) {
        Some(mime) => {
            format!("a content block of type `{kind}` with the media type `{mime}` cannot be sent to a model")
        }
        None => format!("a content block of type `{kind}` cannot be sent to a model"),
    })?;
    if is_empty(kind, &sent) {
        return Err(format!(
            "an empty content block of type `{kind}` cannot be sent to a model"
        ));
    }
    Ok(sent)
}

/// Returns whether a part is a file without content, which providers refuse. A block of the type `text-plain` is a file, too,
/// though it is sent as a text: rig-core would leave out an empty one without a word.
fn is_empty(kind: &str, sent: &UserContent) -> bool {
    let data = match sent {
        UserContent::Image(image) => &image.data,
        UserContent::Audio(audio) => &audio.data,
        UserContent::Document(document) => &document.data,
        UserContent::Text(text) => return kind == "text-plain" && text.text.trim().is_empty(),
        UserContent::ToolResult(_) | UserContent::Video(_) => return false,
    };
    matches!(data, DocumentSourceKind::Base64(text) | DocumentSourceKind::String(text) if text.trim().is_empty())
}

/// The data of a block with its media type.
struct Source {
    data: DocumentSourceKind,
    mime: Option<String>,
}

fn image(block: &Value) -> Option<UserContent> {
    let source = source(block, "image_url")?;
    let mime = source.mime.as_deref().and_then(ImageMediaType::from_mime_type);
    let detail = block
        .pointer("/image_url/detail")
        .or_else(|| block.get("detail"))
        .and_then(Value::as_str);
    let detail = detail.and_then(|detail| detail.parse().ok());
    Some(UserContent::Image(Image {
        data: source.data,
        media_type: mime,
        detail,
        native: None,
    }))
}

fn file(block: &Value) -> Option<UserContent> {
    let source = source(block, "file")?;
    let mime = source.mime.as_deref().unwrap_or("application/pdf");
    if mime.starts_with("image/") {
        return image(block);
    }
    let media_type = Some(DocumentMediaType::from_mime_type(mime)?);
    let additional_params = file_name(block).map(|name| json!({TITLE: name}));
    Some(UserContent::Document(Document {
        data: source.data,
        media_type,
        additional_params,
    }))
}

fn audio(block: &Value) -> Option<UserContent> {
    let source = source(block, "input_audio")?;
    let format = block
        .pointer("/input_audio/format")
        .and_then(Value::as_str)
        .map(|format| format!("audio/{format}"));
    let mime = source.mime.or(format)?;
    let media_type = Some(AudioMediaType::from_mime_type(
        &mime.replace("audio/mpeg", "audio/mp3"),
    )?);
    Some(UserContent::Audio(Audio {
        data: source.data,
        media_type,
    }))
}

/// Returns the data of a block, which is in the block itself, in its `source`, or in the object named after the block's
/// type.
fn source(block: &Value, nested: &str) -> Option<Source> {
    let inner = block.get(nested).or_else(|| block.get("source")).unwrap_or(block);
    if let Some(url) = inner.as_str() {
        return Some(address(url, None));
    }
    let field = |names: &[&str]| {
        let in_block = |from: &Value| {
            names
                .iter()
                .find_map(|name| from.get(*name)?.as_str().map(str::to_owned))
        };
        in_block(inner).or_else(|| in_block(block))
    };
    let mime = field(&["mime_type", "media_type"]);
    if let Some(url) = field(&["url", "image_url", "file_url"]) {
        return Some(address(&url, mime));
    }
    if let Some(data) = field(&["base64", "data", "file_data"]) {
        if data.starts_with("data:") {
            return Some(address(&data, mime));
        }
        let is_text = inner.get("type").and_then(Value::as_str) == Some("text");
        let data = if is_text {
            DocumentSourceKind::String(data)
        } else {
            DocumentSourceKind::Base64(data)
        };
        return Some(Source { data, mime });
    }
    if let Some(text) = inner.get("text").and_then(Value::as_str) {
        return Some(Source {
            data: DocumentSourceKind::string(text),
            mime: mime.or_else(|| Some("text/plain".to_owned())),
        });
    }
    field(&["file_id", "id"]).map(|id| Source {
        data: DocumentSourceKind::FileId(id),
        mime,
    })
}

/// Returns a URL as a source: the decoded content of a `data:` URL, or the URL itself.
fn address(url: &str, mime: Option<String>) -> Source {
    match url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")) {
        Some((stated, data)) => Source {
            data: DocumentSourceKind::base64(data),
            mime: Some(stated.to_owned()).filter(|m| !m.is_empty()).or(mime),
        },
        None => Source {
            data: DocumentSourceKind::url(url),
            mime,
        },
    }
}
