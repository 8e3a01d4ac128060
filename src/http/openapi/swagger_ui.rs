//! The files of Swagger UI, in the archive of its release.
//!
//! The crate `utoipa-swagger-ui` unpacks the same archive when it is built, and builds a dozen other crates for that.

use std::io::Read;

use flate2::read::DeflateDecoder;
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED as ARCHIVE;

/// The file that names the shown document.
const INITIALIZER: &str = "swagger-initializer.js";

/// The document that the release shows.
const SAMPLE: &str = "https://petstore.swagger.io/v2/swagger.json";

/// The beginning of the record that ends a ZIP archive.
const END: [u8; 4] = *b"PK\x05\x06";

/// The methods of compression.
const STORED: usize = 0;
const DEFLATED: usize = 8;

/// A file of the page.
pub(super) struct PageFile {
    pub(super) content_type: &'static str,
    pub(super) content: Vec<u8>,
}

/// Returns a file of the page that shows the document at `document`. None if there is no such file.
pub(super) fn file(name: &str, document: &str) -> Option<PageFile> {
    let content = unpack(find(name)?)?;
    let content = match name {
        INITIALIZER => String::from_utf8(content).ok()?.replace(SAMPLE, document).into_bytes(),
        _ => content,
    };
    let content_type = match name.rsplit_once('.')?.1 {
        "css" => "text/css",
        "html" => "text/html",
        "js" => "text/javascript",
        "png" => "image/png",
        _ => "application/octet-stream",
    };
    Some(PageFile { content_type, content })
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
            let found = file(name, "/openapi.json").expect(name);
            assert_eq!(found.content_type, content_type, "{name}");
            assert_eq!(
                Some(found.content.len()),
                number(find(name).expect(name) + 24, 4),
                "{name}"
            );
            assert!(String::from_utf8_lossy(&found.content).contains(part), "{name}");
        }
        assert!(file("favicon-32x32.png", "/openapi.json").is_some_and(|icon| icon.content.starts_with(b"\x89PNG")));
        for name in ["", "no.js", "../README.md", "index.html/"] {
            assert!(file(name, "/openapi.json").is_none(), "{name}");
        }
    }

    #[test]
    fn the_page_shows_the_document_of_this_server() {
        let initializer = file(INITIALIZER, "/openapi.json").expect("the file").content;
        let initializer = String::from_utf8(initializer).expect("text");
        assert!(initializer.contains("url: \"/openapi.json\""), "{initializer}");
    }
}
