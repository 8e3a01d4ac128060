//! The operation `read_file`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{FileContext, FileResult, MAX_RESULT_CHARS, file_path, normalise, seen};
use crate::definition::FileOperation;
use crate::domain::message::Content;
use crate::domain::state::{Encoding, File};

/// The default of the argument `limit`, in lines.
const DEFAULT_LIMIT: usize = 100;

/// The arguments of `read_file`.
#[derive(Deserialize)]
pub(super) struct Read {
    file_path: String,
    #[serde(default)]
    offset: usize,
    #[serde(default = "default_limit")]
    limit: usize,
}

fn default_limit() -> usize {
    DEFAULT_LIMIT
}

/// Returns the JSON Schema of the arguments of `read_file`.
pub(super) fn properties() -> Value {
    json!({
        "file_path": file_path(),
        "offset": {
            "type": "integer", "minimum": 0, "default": 0,
            "description": "How many lines to skip before the first one shown.",
        },
        "limit": {
            "type": "integer", "minimum": 0, "default": DEFAULT_LIMIT,
            "description": "How many lines to show at most.",
        },
    })
}

pub(super) async fn read(context: &FileContext<'_>, args: Read) -> Result<FileResult, String> {
    let path = normalise(&args.file_path)?;
    context.check(FileOperation::Read, &path).await?;
    let Some(file) = context.read(&path).await? else {
        return Err(format!("Error: File '{path}' not found"));
    };
    let content = match file.encoding {
        Encoding::Base64 => block(&path, &file),
        Encoding::Utf8 => Content::Text(page(&path, &file.content.text(), args.offset, args.limit)?),
    };
    Ok(FileResult {
        content,
        writes: seen::record(context, &path, Some(&file)),
    })
}

/// Returns up to `limit` lines from `offset` on, under a header.
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
    let mut lines = String::new();
    let mut count = 0;
    let mut chars = 0;
    for line in text.split_inclusive('\n').skip(offset).take(limit) {
        chars += line.chars().count();
        if chars > MAX_RESULT_CHARS && count > 0 {
            break;
        }
        lines.push_str(line);
        count += 1;
    }
    let end = offset + count;
    let next = if end < total {
        format!(" | next offset {end}")
    } else {
        String::new()
    };
    let lines = lines.strip_suffix('\n').unwrap_or(&lines);
    let mut page = format!("@@ lines {}-{end} of {total}{next} @@\n", offset + 1);
    match lines.char_indices().nth(MAX_RESULT_CHARS) {
        None => page.push_str(lines),
        Some((cut, _)) => {
            page.push_str(&lines[..cut]);
            page.push_str(&format!(
                "\n[Line {end} was cut here after {MAX_RESULT_CHARS} characters. grep finds text in the rest.]"
            ));
        }
    }
    Ok(page)
}

/// Returns a binary file as a content block.
fn block(path: &str, file: &File) -> Content {
    let (kind, mime) = media(path);
    let mut block = json!({"type": kind, "base64": file.content.text(), "mime_type": mime});
    if kind == "file" {
        let name = path.rsplit('/').next().unwrap_or(path);
        block["filename"] = json!(name);
    }
    Content::Blocks(vec![block])
}

/// Returns the block type and the media type for a file name.
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
