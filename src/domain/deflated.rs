//! Texts that are kept compressed in memory, since they are read rarely.

use std::io::{BufWriter, Read, Write};
use std::sync::{Mutex, PoisonError};

use flate2::Compression;
use flate2::bufread::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// The level of compression. Prose takes a quarter less than with 1, in half as much time again; and a tenth more than with 6,
/// which takes twice as long.
const LEVEL: u32 = 3;

/// The encoder of the last text, for the next one. It has 350 KB: the hundreds of texts of a long thread that is loaded are
/// not to take and leave as much each.
static SPARE_ENCODER: Mutex<Option<Encoder>> = Mutex::new(None);

type Encoder = DeflateEncoder<Vec<u8>>;

/// A compressed text.
pub(super) struct Deflated {
    bytes: Box<[u8]>,
    length: usize,
}

impl Deflated {
    /// Compresses what `write` writes. Returns none if that fails. The caller checks that it is read back as it was.
    pub(super) fn of(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Option<Self> {
        let mut encoder = take_encoder();
        let deflated = Self::by(&mut encoder, write)?;
        keep_encoder(encoder);
        Some(deflated)
    }

    /// Like [`Deflated::of`], for what is mostly Base64. Of that, [`LEVEL`] makes nothing smaller than the lowest level does, in
    /// five times as much time: more than a second for 30 MB.
    pub(super) fn of_base64(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Option<Self> {
        let mut encoder = DeflateEncoder::new(vec![], Compression::fast());
        Self::by(&mut encoder, write)
    }

    /// Compresses with an encoder that has written nothing, and then has nothing to write again.
    fn by(encoder: &mut Encoder, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Option<Self> {
        let mut writer = BufWriter::new(&mut *encoder);
        write(&mut writer).ok()?;
        writer.into_inner().ok()?;
        let length = usize::try_from(encoder.total_in()).ok()?;
        let written = encoder.reset(vec![]).ok()?;
        // A copy of its own size: an allocator may leave a list that shrinks where there was room for twice as much.
        let bytes = Box::from(written.as_slice());
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

fn take_encoder() -> Encoder {
    let spare = SPARE_ENCODER.lock().unwrap_or_else(PoisonError::into_inner).take();
    spare.unwrap_or_else(|| DeflateEncoder::new(vec![], Compression::new(LEVEL)))
}

/// Keeps an encoder that has nothing to write. Others that were at work meanwhile are dropped.
fn keep_encoder(encoder: Encoder) {
    let mut spare = SPARE_ENCODER.lock().unwrap_or_else(PoisonError::into_inner);
    let former = spare.replace(encoder);
    // An encoder writes its end when it is dropped: not while others wait.
    drop(spare);
    drop(former);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deflated(text: &str) -> Deflated {
        Deflated::of(|writer| writer.write_all(text.as_bytes())).expect("a compressed text")
    }

    #[test]
    fn texts_are_compressed_one_after_the_other_as_if_each_were_the_only_one() {
        let short = "a few words";
        let alone = deflated(short);
        let long: String = (0..40_000).map(|number| format!("{number}, ")).collect();
        let compressed = deflated(&long);
        assert_eq!(compressed.text(), long);
        assert_eq!(compressed.length(), long.len());
        let again = deflated(short);
        assert_eq!(again.text(), short);
        assert_eq!(again.weight(), alone.weight());
        assert_eq!(deflated("").text(), "");
        let fast = Deflated::of_base64(|writer| writer.write_all(long.as_bytes())).expect("a compressed text");
        assert_eq!(fast.text(), long);
        assert!(compressed.weight() < fast.weight(), "each has its own level");
        assert_eq!(deflated(&long).weight(), compressed.weight());
    }

    #[test]
    fn a_text_that_cannot_be_written_leaves_nothing_to_the_next_one() {
        let broken = Deflated::of(|writer| {
            writer.write_all("x".repeat(100_000).as_bytes())?;
            Err(std::io::ErrorKind::BrokenPipe.into())
        });
        assert!(broken.is_none());
        assert_eq!(deflated("the next one").text(), "the next one");
    }
}
