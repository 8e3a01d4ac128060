//! Showing a file.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Desk, Found, LONGEST_RESULT, file_path, normalise};
use crate::definition::FileOperation;
use crate::domain::message::Content;
use crate::domain::state::{Encoding, File, Update};

/// How many lines are shown when the model does not say.
const STANDARD_LIMIT: usize = 100;

/// The arguments of `read_file`.
#[derive(Deserialize)]
pub(super) struct Read {
    file_path: String,
    #[serde(default)]
    offset: usize,
    #[serde(default = "standard_limit")]
    limit: usize,
}

fn standard_limit() -> usize {
    STANDARD_LIMIT
}

/// The arguments of `read_file` as the model sees them.
pub(super) fn properties() -> Value {
    json!({
        "file_path": file_path(),
        "offset": {
            "type": "integer", "minimum": 0, "default": 0,
            "description": "How many lines to skip before the first one shown.",
        },
        "limit": {
            "type": "integer", "minimum": 0, "default": STANDARD_LIMIT,
            "description": "How many lines to show at most.",
        },
    })
}

pub(super) async fn read(desk: &Desk<'_>, wish: Read) -> Result<Found, String> {
    let path = normalise(&wish.file_path)?;
    desk.rules.check(FileOperation::Read, &path)?;
    let Some(file) = desk.workspace.read(desk.state, &path).await? else {
        return Err(format!("Error: File '{path}' not found"));
    };
    match file.encoding {
        Encoding::Base64 => Ok(Found {
            content: block(&path, &file),
            writes: Update::none(),
        }),
        Encoding::Utf8 => page(&path, &file.content, wish.offset, wish.limit).map(Found::text),
    }
}

/// The lines from `offset` on under their header.
fn page(path: &str, text: &str, offset: usize, limit: usize) -> Result<String, String> {
    if text.is_empty() {
        return Ok(format!("Note: the file '{path}' exists, but is empty."));
    }
    let total = text.lines().count();
    if limit == 0 {
        return Ok(format!(
            "Note: no lines were asked for (limit 0). The file '{path}' has {total} lines."
        ));
    }
    if offset >= total {
        return Err(format!(
            "Error: offset {offset} is beyond the end of '{path}', which has {total} lines"
        ));
    }
    let mut shown = String::new();
    let mut count = 0;
    let mut chars = 0;
    for line in text.split_inclusive('\n').skip(offset).take(limit) {
        chars += line.chars().count();
        if chars > LONGEST_RESULT && count > 0 {
            break;
        }
        shown.push_str(line);
        count += 1;
    }
    let end = offset + count;
    let next = if end < total {
        format!(" | next offset {end}")
    } else {
        String::new()
    };
    let shown = shown.strip_suffix('\n').unwrap_or(&shown);
    let mut page = format!("@@ lines {}-{end} of {total}{next} @@\n", offset + 1);
    match shown.char_indices().nth(LONGEST_RESULT) {
        None => page.push_str(shown),
        Some((cut, _)) => {
            page.push_str(&shown[..cut]);
            page.push_str(&format!(
                "\n[Line {end} was cut here after {LONGEST_RESULT} characters. grep finds text in the rest.]"
            ));
        }
    }
    Ok(page)
}

/// A binary file as a content block.
fn block(path: &str, file: &File) -> Content {
    let (kind, mime) = media(path);
    let mut block = json!({"type": kind, "base64": file.content, "mime_type": mime});
    if kind == "file" {
        let name = path.rsplit('/').next().unwrap_or(path);
        block["filename"] = json!(name);
    }
    Content::Blocks(vec![block])
}

/// What kind of block the name of a file calls for, and its media type.
fn media(path: &str) -> (&'static str, &'static str) {
    let ending = path
        .rsplit_once('.')
        .map_or("", |(_, ending)| ending)
        .to_ascii_lowercase();
    match ending.as_str() {
        "png" => ("image", "image/png"),
        "jpg" | "jpeg" => ("image", "image/jpeg"),
        "gif" => ("image", "image/gif"),
        "webp" => ("image", "image/webp"),
        "heic" => ("image", "image/heic"),
        "heif" => ("image", "image/heif"),
        "mp3" => ("audio", "audio/mpeg"),
        "wav" => ("audio", "audio/wav"),
        "ogg" => ("audio", "audio/ogg"),
        "flac" => ("audio", "audio/flac"),
        "m4a" | "aac" => ("audio", "audio/aac"),
        "mp4" => ("video", "video/mp4"),
        "webm" => ("video", "video/webm"),
        "mov" => ("video", "video/quicktime"),
        "mpg" | "mpeg" => ("video", "video/mpeg"),
        "avi" => ("video", "video/x-msvideo"),
        "pdf" => ("file", "application/pdf"),
        "ppt" => ("file", "application/vnd.ms-powerpoint"),
        "pptx" => (
            "file",
            "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        ),
        _ => ("file", "application/octet-stream"),
    }
}
