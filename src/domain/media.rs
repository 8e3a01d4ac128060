//! Media in messages: images, files, audio and video, in all spellings of clients.

use serde_json::{Value, json};

use super::text_limits::first_chars;

/// The keys under which a block holds its data.
const DATA: [&str; 3] = ["base64", "data", "file_data"];
/// The objects of a block that may hold its data or its name.
const HOLDERS: [&str; 7] = [
    "source",
    "file",
    "image_url",
    "input_audio",
    "video",
    "metadata",
    "extras",
];
/// The longest name of a file that is shown, in characters.
const MAX_NAME_CHARS: usize = 200;

/// The kinds of media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// An image.
    Image,
    /// A file, such as a PDF.
    File,
    /// Audio.
    Audio,
    /// A video.
    Video,
}

impl MediaKind {
    /// Returns the kind of media in blocks of the type `kind`; none for text and other types.
    pub fn of_type(kind: &str) -> Option<Self> {
        match kind {
            "image" | "image_url" | "input_image" => Some(Self::Image),
            "file" | "document" | "input_file" | "media" => Some(Self::File),
            "audio" | "input_audio" => Some(Self::Audio),
            "video" | "video_url" | "input_video" => Some(Self::Video),
            _ => None,
        }
    }
}

/// Returns the kind of the media in a block; none for text and for other blocks.
pub fn media_kind(block: &Value) -> Option<MediaKind> {
    MediaKind::of_type(block.get("type").and_then(Value::as_str)?)
}

/// Returns the media type that a block states.
pub fn media_type(block: &Value) -> Option<&str> {
    let mut all = std::iter::once(block).chain(holders(block));
    let stated = all.find_map(|holder| {
        ["mime_type", "media_type"]
            .iter()
            .find_map(|name| holder.get(*name)?.as_str())
    });
    if stated.is_some() {
        return stated;
    }
    // A `data:` address states it as well.
    let (stated, _) = data(block)?.strip_prefix("data:")?.split_once(";base64,")?;
    Some(stated).filter(|stated| !stated.is_empty())
}

/// Returns the name of a block's file.
pub fn file_name(block: &Value) -> Option<&str> {
    let name = |holder| {
        ["filename", "file_name", "name", "title"]
            .iter()
            .find_map(|name| Value::get(holder, *name)?.as_str())
    };
    let mut all = std::iter::once(block).chain(holders(block));
    all.find_map(name).map(str::trim).filter(|name| !name.is_empty())
}

fn holders(block: &Value) -> impl Iterator<Item = &Value> {
    HOLDERS.into_iter().filter_map(|name| block.get(name))
}

/// Returns the data of a block in base64, or its `data:` address.
fn data(block: &Value) -> Option<&str> {
    let mut all = std::iter::once(block).chain(holders(block));
    all.find_map(|holder| {
        let address = || {
            let url = holder.as_str().or_else(|| holder.get("url")?.as_str());
            url.filter(|url| url.starts_with("data:"))
        };
        DATA.iter()
            .find_map(|name| holder.get(*name)?.as_str())
            .or_else(address)
    })
}

/// Returns the size of a block's data, in bytes; none if the block does not hold the data.
fn data_bytes(block: &Value) -> Option<usize> {
    let data = data(block)?;
    // A text in the form of Anthropic.
    if block.pointer("/source/type").and_then(Value::as_str) == Some("text") {
        return Some(data.len());
    }
    let base64 = data.split_once(";base64,").map_or(data, |(_, base64)| base64);
    Some(base64.trim_end_matches('=').len() * 3 / 4)
}

/// Returns words for a block: its type, and the name, the media type and the size of its file.
pub fn description(block: &Value) -> String {
    let kind = block.get("type").and_then(Value::as_str).unwrap_or("unknown");
    let short = |text: &str| first_chars(text, MAX_NAME_CHARS).to_owned();
    let name = file_name(block).map(|name| format!(" \"{}\"", short(name)));
    let facts = [
        media_type(block).map(short),
        data_bytes(block).map(|bytes| format!("{bytes} bytes")),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let facts = match facts.is_empty() {
        true => String::new(),
        false => format!(" ({})", facts.join(", ")),
    };
    let kind = short(kind);
    format!("content of type `{kind}`{}{facts}", name.unwrap_or_default())
}

/// Returns a text block that stands for a block which is not shown to the model. It describes the block, and says why it
/// is not there.
pub fn placeholder(block: &Value, why: &str) -> Value {
    json!({"type": "text", "text": format!("[The {} is not shown: {why}.]", description(block))})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_names_the_file_its_type_and_its_size_in_every_spelling() {
        let text = |block: Value| {
            placeholder(&block, "no")["text"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let video = json!({"type": "video", "base64": "AAAA", "mime_type": "video/mp4", "filename": "clip.mp4"});
        assert_eq!(
            text(video),
            "[The content of type `video` \"clip.mp4\" (video/mp4, 3 bytes) is not shown: no.]"
        );
        let address =
            json!({"type": "file", "file": {"filename": "a.docx", "file_data": "data:app/x;base64,AAAAAA=="}});
        assert_eq!(
            text(address),
            "[The content of type `file` \"a.docx\" (app/x, 4 bytes) is not shown: no.]"
        );
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
        assert_eq!(
            text(image),
            "[The content of type `image_url` (image/png, 3 bytes) is not shown: no.]"
        );
        let source = json!({"type": "text", "media_type": "text/plain", "data": "hello"});
        let plain = json!({"type": "document", "source": source, "title": "a.txt"});
        assert_eq!(
            text(plain),
            "[The content of type `document` \"a.txt\" (text/plain, 5 bytes) is not shown: no.]"
        );
        let linked = json!({"type": "image", "url": "https://example.org/x.png"});
        assert_eq!(text(linked), "[The content of type `image` is not shown: no.]");
        assert_eq!(
            text(json!({"data": 1})),
            "[The content of type `unknown` is not shown: no.]"
        );
    }

    #[test]
    fn text_is_no_media() {
        assert_eq!(media_kind(&json!({"type": "text", "text": "x"})), None);
        assert_eq!(media_kind(&json!("x")), None);
        assert_eq!(
            media_kind(&json!({"type": "video", "base64": ""})),
            Some(MediaKind::Video)
        );
    }
}
