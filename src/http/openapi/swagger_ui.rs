//! The files of Swagger UI, in the archive of its release.
//!
//! The crate `utoipa-swagger-ui` unpacks the same archive when it is built, and builds a dozen other crates for that.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Mutex;

use axum::body::Bytes;
use flate2::read::DeflateDecoder;
use tokio::task::spawn_blocking;
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED as ARCHIVE;

use crate::http::error::ApiError;

/// The file that names the shown document.
const INITIALIZER: &str = "swagger-initializer.js";

/// The document that the release shows.
const SAMPLE: &str = "https://petstore.swagger.io/v2/swagger.json";

/// The beginning of the record that ends a ZIP archive.
const END: [u8; 4] = *b"PK\x05\x06";

/// The methods of compression.
const STORED: usize = 0;
const DEFLATED: usize = 8;

/// The path of the document that the page shows.
pub(super) const DOCUMENT: &str = "/openapi.json";

/// A file of the page.
#[derive(Clone)]
pub(super) struct PageFile {
    pub(super) content_type: &'static str,
    pub(super) content: Bytes,
}

/// The files that were requested. The largest takes milliseconds to unpack, and anyone may request it.
static UNPACKED: Mutex<BTreeMap<String, PageFile>> = Mutex::new(BTreeMap::new());

/// Returns a file of the page, which is unpacked when it is first requested. `None` if there is no such file.
///
/// # Errors
/// 500 if the task that unpacks it panics.
pub(super) async fn file(name: &str) -> Result<Option<PageFile>, ApiError> {
    let known = UNPACKED.lock().ok().and_then(|files| files.get(name).cloned());
    if known.is_some() {
        return Ok(known);
    }
    let requested = name.to_owned();
    let found = spawn_blocking(move || read(&requested)).await;
    let found = found.map_err(|error| ApiError::fault(&error))?;
    if let Some(file) = &found
        && let Ok(mut files) = UNPACKED.lock()
    {
        files.insert(name.to_owned(), file.clone());
    }
    Ok(found)
}

/// Reads a file in the archive.
fn read(name: &str) -> Option<PageFile> {
    let content = unpack(find(name)?)?;
    let content = match name {
        INITIALIZER => String::from_utf8(content).ok()?.replace(SAMPLE, DOCUMENT).into_bytes(),
        _ => content,
    };
    let content_type = match name.rsplit_once('.')?.1 {
        "css" => "text/css",
        "html" => "text/html",
        "js" => "text/javascript",
        "png" => "image/png",
        _ => "application/octet-stream",
    };
    Some(PageFile {
        content_type,
        content: content.into(),
    })
}

/// Returns the position of the record of a file in the directory of the archive.
fn find(name: &str) -> Option<usize> {
    let end = ARCHIVE.windows(END.len()).rposition(|bytes| bytes == END)?;
    let mut record = number(end + 16, 4)?;
    for _ in 0..number(end + 10, 2)? {
        let path_length = number(record + 28, 2)?;
        let path = ARCHIVE.get(record + 46..record + 46 + path_length)?;
        // The first folder has the name of the release.
        let path = std::str::from_utf8(path).ok()?.split_once('/')?.1;
        if path.strip_prefix("dist/") == Some(name) {
            return Some(record);
        }
        record += 46 + path_length + number(record + 30, 2)? + number(record + 32, 2)?;
    }
    None
}

/// Returns the content of the file with this record.
fn unpack(record: usize) -> Option<Vec<u8>> {
    let length = number(record + 20, 4)?;
    let header = number(record + 42, 4)?;
    let start = header + 30 + number(header + 26, 2)? + number(header + 28, 2)?;
    let packed = ARCHIVE.get(start..start + length)?;
    match number(record + 10, 2)? {
        STORED => Some(packed.to_vec()),
        DEFLATED => {
            let mut content = vec![];
            DeflateDecoder::new(packed).read_to_end(&mut content).ok()?;
            Some(content)
        }
        _ => None,
    }
}

/// Returns the number in so many bytes of the archive.
fn number(at: usize, length: usize) -> Option<usize> {
    let bytes = ARCHIVE.get(at..at + length)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| (number << 8) | usize::from(*byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_its_files_are_in_the_archive() {
        for (name, content_type, part) in [
            ("index.html", "text/html", "<div id=\"swagger-ui\">"),
            ("swagger-ui.css", "text/css", ".swagger-ui"),
            ("swagger-ui-bundle.js", "text/javascript", "SwaggerUIBundle"),
            (
                "swagger-ui-standalone-preset.js",
                "text/javascript",
                "SwaggerUIStandalonePreset",
            ),
        ] {
            let found = read(name).expect(name);
            assert_eq!(found.content_type, content_type, "{name}");
            assert_eq!(
                Some(found.content.len()),
                number(find(name).expect(name) + 24, 4),
                "{name}"
            );
            assert!(String::from_utf8_lossy(&found.content).contains(part), "{name}");
        }
        assert!(read("favicon-32x32.png").is_some_and(|icon| icon.content.starts_with(b"\x89PNG")));
        for name in ["", "no.js", "../README.md", "index.html/"] {
            assert!(read(name).is_none(), "{name}");
        }
    }

    #[tokio::test]
    async fn a_file_is_unpacked_once() {
        let icon = async || {
            file("favicon-16x16.png")
                .await
                .ok()
                .flatten()
                .expect("the file")
                .content
        };
        let first = icon().await;
        assert_eq!(icon().await.as_ptr(), first.as_ptr());
    }

    #[test]
    fn the_page_shows_the_document_of_this_server() {
        let initializer = read(INITIALIZER).expect("the file").content;
        let initializer = String::from_utf8_lossy(&initializer);
        assert!(initializer.contains("url: \"/openapi.json\""), "{initializer}");
    }
}
