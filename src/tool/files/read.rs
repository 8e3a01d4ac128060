//! The operation `read_file`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{FileContext, FileResult, file_path, normalise, seen};
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
    #[serde(default)]
    char_offset: usize,
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
        "char_offset": {
            "type": "integer", "minimum": 0, "default": 0,
            "description": "How many characters of the first line to skip. For lines that are too long to be shown whole.",
        },
    })
}

pub(super) async fn read(context: &FileContext<'_>, args: Read) -> Result<FileResult, String> {
    let path = normalise(&args.file_path)?;
    context.check(FileOperation::Read, &path).await?;
    let Some(file) = context.read(&path).await? else {
        return Err(format!("Error: File '{path}' not found"));
    };
    let window = Window {
        offset: args.offset,
        char_offset: args.char_offset,
        limit: args.limit,
        max_chars: context.max_page_chars,
    };
    let content = if file.content.is_empty() {
        Content::Text(format!("Note: the file '{path}' exists, but is empty."))
    } else {
        match file.encoding {
            Encoding::Base64 => block(&path, &file),
            Encoding::Utf8 => Content::Text(page(&path, &file.content.text(), &window)?),
        }
    };
    Ok(FileResult {
        content,
        writes: seen::record(context, &path, Some(&file)),
    })
}

/// The part of a text that is asked for.
struct Window {
    /// The number of lines before it.
    offset: usize,
    /// The number of characters before it in its first line.
    char_offset: usize,
    /// The maximum number of lines.
    limit: usize,
    /// The maximum number of characters.
    max_chars: usize,
}

/// The first line of a page.
struct FirstLine<'a> {
    /// The part that is shown, with the line break if that is reached.
    shown: &'a str,
    /// The length of the line in characters, without the line break.
    length: usize,
    /// The number of characters of the line up to the end of the part.
    end: usize,
}

impl<'a> FirstLine<'a> {
    /// Returns the part of `line` that a window shows; the length of the line if the window begins behind it.
    fn of(line: &'a str, window: &Window) -> Result<Self, usize> {
        let text = line.strip_suffix('\n').unwrap_or(line);
        let length = text.strip_suffix('\r').unwrap_or(text).chars().count();
        if window.char_offset > 0 && window.char_offset >= length {
            return Err(length);
        }
        let rest = &line[byte_at(line, window.char_offset)..];
        if length - window.char_offset <= window.max_chars {
            return Ok(Self {
                shown: rest,
                length,
                end: length,
            });
        }
        Ok(Self {
            shown: &rest[..byte_at(rest, window.max_chars)],
            length,
            end: window.char_offset + window.max_chars,
        })
    }
}

/// Returns the position in bytes of the character with this index, or of the end of a shorter text.
fn byte_at(text: &str, index: usize) -> usize {
    text.char_indices().nth(index).map_or(text.len(), |(at, _)| at)
}

/// Returns the lines of a window, under a header. A line that is longer than a page may be is cut, and the header names
/// the `char_offset` of its rest.
fn page(path: &str, text: &str, window: &Window) -> Result<String, String> {
    let Window { offset, limit, .. } = *window;
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
    let mut lines = text.split_inclusive('\n').skip(offset);
    let first = FirstLine::of(lines.next().unwrap_or_default(), window).map_err(|length| {
        format!(
            "Error: char_offset {} is beyond the end of line {} of '{path}', which has {length} characters",
            window.char_offset,
            offset + 1
        )
    })?;
    let is_cut = first.end < first.length;
    let mut shown = first.shown.to_owned();
    let mut chars = shown.chars().count();
    let mut end = offset + 1;
    for line in lines.take(if is_cut { 0 } else { limit - 1 }) {
        chars += line.chars().count();
        if chars > window.max_chars {
            break;
        }
        shown.push_str(line);
        end += 1;
    }
    let mut header = format!("lines {}-{end} of {total}", offset + 1);
    if is_cut || window.char_offset > 0 {
        header.push_str(&format!(
            " | characters {}-{} of {} in line {}",
            window.char_offset + 1,
            first.end,
            first.length,
            offset + 1
        ));
    }
    if is_cut {
        header.push_str(&format!(" | next char_offset {} with offset {offset}", first.end));
    } else if end < total {
        header.push_str(&format!(" | next offset {end}"));
    }
    Ok(format!(
        "@@ {header} @@\n{}",
        shown.strip_suffix('\n').unwrap_or(&shown)
    ))
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
