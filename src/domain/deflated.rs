//! Texts that are kept compressed in memory, since they are read rarely.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// A compressed text.
pub(super) struct Deflated {
    bytes: Box<[u8]>,
    length: usize,
}

impl Deflated {
    /// Compresses what `write` writes. Returns none if that fails. The caller checks that it is read back as it was.
    pub(super) fn of(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Option<Self> {
        let mut encoder = DeflateEncoder::new(vec![], Compression::fast());
        let mut writer = std::io::BufWriter::new(&mut encoder);
        write(&mut writer).ok()?;
        writer.flush().ok()?;
        drop(writer);
        let length = usize::try_from(encoder.total_in()).ok()?;
        let bytes = encoder.finish().ok()?.into_boxed_slice();
        Some(Self { bytes, length })
    }

    /// Returns the text; an empty one if what was written was no text.
    pub(super) fn text(&self) -> String {
        let mut text = String::with_capacity(self.length);
        let read = DeflateDecoder::new(&*self.bytes).read_to_string(&mut text);
        read.map(|_| text).unwrap_or_default()
    }

    /// Returns the length of the text, in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns the length of the compressed text, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.bytes.len()
    }
}
