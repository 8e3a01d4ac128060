//! The media that a model takes.

use serde_json::Value;

use crate::domain::media::{MediaKind, media_kind, media_type};

/// The media type of a file whose block names none.
const PDF: &str = "application/pdf";

/// The media that a model takes, as its profile says. It takes what the profile does not deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaInputs {
    /// True if the model may take images.
    pub images: bool,
    /// True if the model may take audio.
    pub audio: bool,
    /// True if the model may take PDF files.
    pub pdf: bool,
}

impl MediaInputs {
    /// Returns the reason why the model does not take a content block; none if it may.
    pub fn refusal(self, block: &Value) -> Option<String> {
        let kind = media_kind(block)?;
        let mime = media_type(block);
        let is = |beginning: &str| mime.is_some_and(|mime| mime.starts_with(beginning));
        let (is_taken, setting) = match kind {
            MediaKind::Image => (self.images, "image_inputs"),
            MediaKind::Audio => (self.audio, "audio_inputs"),
            MediaKind::File | MediaKind::Video if is("image/") => (self.images, "image_inputs"),
            MediaKind::File | MediaKind::Video if is("audio/") => (self.audio, "audio_inputs"),
            MediaKind::File if mime.is_none_or(|mime| mime == PDF) => (self.pdf, "pdf_inputs"),
            MediaKind::File | MediaKind::Video => return None,
        };
        (!is_taken).then(|| format!("the profile of the model has `{setting} = false`"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_media_has_a_setting() {
        let all = MediaInputs {
            images: true,
            audio: true,
            pdf: true,
        };
        let none = MediaInputs {
            images: false,
            audio: false,
            pdf: false,
        };
        let address = json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}});
        for (block, setting) in [
            (json!({"type": "image", "base64": "AA"}), Some("image_inputs")),
            (
                json!({"type": "image_url", "image_url": {"url": "x"}}),
                Some("image_inputs"),
            ),
            (
                json!({"type": "file", "base64": "AA", "mime_type": "image/png"}),
                Some("image_inputs"),
            ),
            (
                json!({"type": "input_audio", "input_audio": {"data": "AA"}}),
                Some("audio_inputs"),
            ),
            (
                json!({"type": "media", "data": "AA", "mime_type": "audio/mpeg"}),
                Some("audio_inputs"),
            ),
            (json!({"type": "file", "base64": "AA"}), Some("pdf_inputs")),
            (address, Some("pdf_inputs")),
            (json!({"type": "file", "base64": "AA", "mime_type": "text/plain"}), None),
            (json!({"type": "text", "text": "x"}), None),
        ] {
            assert_eq!(all.refusal(&block), None, "{block}");
            let expected = setting.map(|setting| format!("the profile of the model has `{setting} = false`"));
            assert_eq!(none.refusal(&block), expected, "{block}");
        }
    }
}
