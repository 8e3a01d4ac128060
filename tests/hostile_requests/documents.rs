//! Hostile documents: deep, wide or long ones, unusual numbers and encodings, and schemas that are expensive to
//! evaluate.

use serde_json::json;

use super::schemas::doubling;

/// A reproducible random number generator (SplitMix64).
pub(crate) struct Chance(u64);

impl Chance {
    /// Creates a generator with this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    /// Returns one of these.
    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Returns true once in `times` on average.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Numbers at and beyond the limits of parsers, and texts that only look like numbers.
const NUMBERS: [&str; 12] = [
    "1e400",
    "-1e400",
    "1e308",
    "-0.0",
    "18446744073709551616",
    "-9223372036854775809",
    "0.1e-999",
    "NaN",
    "Infinity",
    "0x10",
    "01",
    "123456789012345678901234567890123456789012345678901234567890",
];

/// Returns a hostile JSON value that is small enough to be sent thousands of times.
pub(crate) fn small(chance: &mut Chance) -> Vec<u8> {
    match chance.below(16) {
        0 => nested(chance.below(200), b"[", b"1", b"]"),
        1 => nested(chance.below(200), b"{\"a\":", b"null", b"}"),
        2 => nested(20_000, b"[", b"", b"]"),
        3 => chance.pick(&NUMBERS).as_bytes().to_vec(),
        4 => b"\"\\u0000\"".to_vec(),
        5 => b"{\"\\u0000\":1}".to_vec(),
        6 => b"\"\\ud800\"".to_vec(),
        7 => b"\"\xff\xfe\"".to_vec(),
        8 => b"\"\xc0\xaf\xed\xa0\x80\"".to_vec(),
        9 => json!("\u{202e}\u{feff}\u{10ffff}\u{7f}\r\n\t").to_string().into_bytes(),
        10 => b"{\"a\":1,\"a\":2,\"\":3,\"__proto__\":{}}".to_vec(),
        11 => doubling(chance.below(30)).to_string().into_bytes(),
        12 => json!({"$ref": "#", "$schema": "http://127.0.0.1:1/x", "pattern": "(a+)+$"})
            .to_string()
            .into_bytes(),
        13 => json!("x".repeat(chance.below(5000))).to_string().into_bytes(),
        14 => json!(["", null, true, -1, 1.5, {}, []]).to_string().into_bytes(),
        _ => json!([
            "../../etc/passwd",
            "'; drop table runs; --",
            "${HOME}",
            "%00",
            "http://169.254.169.254/"
        ])
        .to_string()
        .into_bytes(),
    }
}

/// Returns a JSON value near, at or above the server's maximum body size.
pub(crate) fn large(chance: &mut Chance) -> Vec<u8> {
    let size = *chance.pick(&[100_000, 1_000_000, 4_000_000, 5_000_000]);
    match chance.below(5) {
        0 => list(b"0,", size),
        1 => list(b"[],", size),
        2 => list(b"{\"\":0},", size),
        3 => json!("a".repeat(size)).to_string().into_bytes(),
        _ => nested(size / 2, b"[", b"", b"]"),
    }
}

fn list(item: &[u8], size: usize) -> Vec<u8> {
    let mut text = vec![b'['];
    while text.len() + item.len() < size {
        text.extend_from_slice(item);
    }
    text.extend_from_slice(b"0]");
    text
}

fn nested(levels: usize, open: &[u8], inner: &[u8], close: &[u8]) -> Vec<u8> {
    [open.repeat(levels), inner.to_vec(), close.repeat(levels)].concat()
}
