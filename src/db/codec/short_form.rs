//! The short form of JSON texts in columns of the log and of requests.
//!
//! Most of a small text is what all such texts have in common: names of fields, the same values beside each other, and ids in
//! digits. In the short form, texts of a dictionary are codes of one or two characters, and ids are numbers to the base 94.
//! All else stays as it is, so that the short form of a text is a text: it fits into the columns of long ones, is sealed like
//! them, and what a user has written can still be found in it.
//!
//! The dictionary is never changed, since stored texts need it. Texts that were added to it later are in the short forms with
//! another mark, which only servers on SQLite store: there is no server of a former release beside them.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::LazyLock;

use crate::db::Tx;

/// The beginning of a text in the short form. No JSON text has control characters; nor has a packed or a sealed one such a
/// beginning.
const MARK: u8 = 0x01;
/// The beginning of a text in the short form that may have codes of texts in [`LATER`].
const LATER_MARK: u8 = 0x02;
/// A UUID with hyphens, in two numbers, is behind this code.
const UUID: u8 = 0x02;
/// The number that [`HEX_DIGITS`] digits are is behind this code.
const HEX: u8 = 0x03;
/// The place of a text in [`RARE`], in one digit, is behind this code; or [`THIRD`] and the place of a text in [`LATER`].
const SECOND: u8 = 0x04;
/// A character that is no digit.
const THIRD: u8 = b' ';
/// This code is an object of the name [`TREE`] that is the same as the object before it: the usage of a run without others
/// below it.
const SAME: u8 = 0x05;
/// The codes of the texts in [`FREQUENT`]. Those between them are line breaks and tabs, which tools for databases change.
const CODES: [u8; 23] = [
    0x06, 0x07, 0x08, 0x0b, 0x0c, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b,
    0x1c, 0x1d, 0x1e, 0x1f,
];

/// The end of an object, and the beginning of the next one.
const TREE: &str = r#"},"tree":{"#;

/// The base of numbers: all printable characters of ASCII but the space.
const BASE: u64 = 94;
const ZERO: u8 = b'!';
/// The digits of a number of 64 bits.
const NUMBER_LEN: usize = 10;
/// The hexadecimal digits of such a number.
const HEX_DIGITS: usize = 16;
const UUID_LEN: usize = 36;
/// The digits with which every id begins.
const MIN_ID_DIGITS: usize = 8;

/// The longest text that is shortened, in bytes. What is longer is mostly content, of which the short form saves nothing. It may
/// become larger, and never smaller: no stored text expands to more.
const MAX_BYTES: usize = 32 << 10;
/// A text of more bytes than these is shortened to one part of so many at the smallest. What is read at once is bounded by the
/// bytes that are stored, and a user could repeat a text of the dictionary.
const ANY_SHARE_BYTES: usize = 1 << 10;
const SMALLEST_SHARE: usize = 4;

/// The dictionary: texts with a code of one character.
static FREQUENT: [&str; 23] = [
    r#"[{"messages":[{"type":"human","id":""#,
    r#"[{"messages":[{"type":"ai","id":"lc_run--"#,
    r#"[{"messages":[{"type":"tool","id":""#,
    r#"","content":""#,
    r#""}]}]"#,
    r#"","name":""#,
    r#"","usage_metadata":{"input_tokens":"#,
    r#","output_tokens":"#,
    r#","total_tokens":"#,
    r#","input_token_details":{},"output_token_details":{}},"response_metadata":{"finish_reason":"stop","model_name":""#,
    r#"","model_name":""#,
    r#"","model_provider":""#,
    r#"{"phase":"ended","taken":"#,
    r#"{"phase":{"hooks":{"point":"before_agent","next":0}}}"#,
    r#"{"phase":"start"}"#,
    r#"{"fact":"started","base":""#,
    r#"","attempt":1,"resumed":false}"#,
    r#"{"fact":"ended","status":"success","used":{"own":{"model_calls":"#,
    r#","input_tokens":"#,
    r#","seconds":"#,
    r#"{"input":{"messages":[{"role":"user","content":""#,
    r#""}]},"stream_mode":["values"],"agent":{"graph_id":""#,
    r#"\":\""#,
];

/// The dictionary: texts with a code of two characters, as many as there are digits.
static RARE: [&str; 94] = [
    r#"","version":1,"definition":""#,
    r#","definition":""#,
    r#"","version":"#,
    r#"},"agent":{"graph_id":""#,
    r#","agent":{"graph_id":""#,
    r#""}]},"stream_mode":[""#,
    r#","stream_mode":[""#,
    r#""messages-tuple""#,
    r#","stream_subgraphs":true"#,
    r#","stream_resumable":true"#,
    r#","config":{"configurable":{""#,
    r#","context":{""#,
    r#","metadata":{""#,
    r#""webhook":""#,
    r#","caller":{"identity":""#,
    r#"","tenant":""#,
    r#"","display_name":""#,
    r#"","roles":[""#,
    r#""],"permissions":[""#,
    r#"{"command":{"resume":{""#,
    r#"},"update":null,"goto":[]}"#,
    r#","checkpoint":""#,
    r#","multitask":""#,
    r#"{"input":{"messages":[{"#,
    r#"{"role":"user","content":""#,
    r#"{"role":"assistant","content":""#,
    r#"{"type":"human","content":""#,
    r#"{"type":"human","id":""#,
    r#"{"type":"ai","id":"lc_run--"#,
    r#"{"type":"tool","id":""#,
    r#"{"type":"remove","id":""#,
    r#"{"type":"text","text":""#,
    r#""content":[{"type":"text","text":""#,
    r#"","tool_calls":[{"name":""#,
    r#"","id":"call_"#,
    r#"","id":""#,
    r#"","args":{""#,
    r#"","tool_call_id":""#,
    r#"","status":"error""#,
    r#","artifact":"#,
    r#","usage_metadata":{"input_tokens":"#,
    r#","input_token_details":{"#,
    r#","output_token_details":{"#,
    r#""cache_read":"#,
    r#""cache_creation":"#,
    r#""reasoning":"#,
    r#"},"response_metadata":{"finish_reason":""#,
    r#"","additional_kwargs":{""#,
    r#""reasoning_content":""#,
    r#"{"phase":"model","taken":"#,
    r#"{"phase":"model"}"#,
    r#"{"phase":{"tools":{"calls":[{"id":""#,
    r#"","fate":"ready"}"#,
    r#"","fate":"started"}"#,
    r#"","fate":"asking"}"#,
    r#"","fate":{"answered":{"writes":{"messages":[{"type":"tool","id":""#,
    r#"","fate":{"delegated":{"child":""#,
    r#"","parked":"#,
    r#","taken":"#,
    r#","shown":true"#,
    r#"{"phase":{"hooks":{"point":""#,
    r#"","next":"#,
    r#"{"fact":"calling","head":""#,
    r#"","calls":[[0,""#,
    r#"{"fact":"answered","head":""#,
    r#"","call":"#,
    r#","writes":{"messages":[{"type":"tool","id":""#,
    r#"{"fact":"ended","status":""#,
    r#"{"fact":"asked","head":""#,
    r#"","interrupts":[{"id":""#,
    r#"{"fact":"custom","value":{""#,
    r#"{"fact":"started","attempt":1,"resumed":false}"#,
    r#","resumed":false}"#,
    r#","resumed":true}"#,
    r#","error":{"class":""#,
    r#"","message":""#,
    r#","waits":true"#,
    r#","used":{"own":{"model_calls":"#,
    r#"},"tree":{"#,
    r#","tool_calls":"#,
    r#","children":"#,
    r#","cost_micros":"#,
    r#""files":{""#,
    r#""file_path":""#,
    r#""subagent_type":""#,
    r#""description":""#,
    r#"","status":"pending"}"#,
    r#"","status":"in_progress"}"#,
    r#"","status":"completed"}"#,
    r#"\",\""#,
    r#"":{""#,
    r#""},{""#,
    r#"{"model_calls":"#,
    r#","input_token_details":{},"output_token_details":{}},"response_metadata":{"finish_reason":"tool_calls","model_name":""#,
];

/// The texts that were added to the dictionary, with a code of three characters.
static LATER: [&str; 18] = [
    r#","input_token_details":{},"output_token_details":{}},"additional_kwargs":{"refusal":null},"response_metadata":{"finish_reason":"stop","model_name":""#,
    r#","input_token_details":{},"output_token_details":{}},"additional_kwargs":{"refusal":null},"response_metadata":{"finish_reason":"tool_calls","model_name":""#,
    r#"}},"additional_kwargs":{"refusal":null},"response_metadata":{"finish_reason":"stop","model_name":""#,
    r#"}},"additional_kwargs":{"refusal":null},"response_metadata":{"finish_reason":"tool_calls","model_name":""#,
    r#"}},"response_metadata":{"finish_reason":"stop","model_name":""#,
    r#"}},"response_metadata":{"finish_reason":"tool_calls","model_name":""#,
    r#","additional_kwargs":{"refusal":null},"response_metadata":{"finish_reason":""#,
    r#","input_token_details":{"cache_read":"#,
    r#"},"output_token_details":{"reasoning":"#,
    r#"","model_provider":"openai","id":"chatcmpl-"#,
    r#"","model_provider":"openai_responses","id":"resp_"#,
    r#"","model_provider":"anthropic","id":"msg_"#,
    r#"","model_provider":"google_genai","id":""#,
    r#"","model_provider":"ollama"}}]}]"#,
    r#"}]},"stream_mode":["values"],"agent":{"graph_id":""#,
    r#""}]},"stream_mode":["messages-tuple"],"agent":{"graph_id":""#,
    r#""}]},"stream_mode":["updates"],"agent":{"graph_id":""#,
    r#""}}]}]"#,
];

/// The texts that a short form has codes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum Dictionary {
    /// The texts that servers of former releases read.
    First,
    /// All texts, with those in [`LATER`].
    Whole,
}

/// Returns the dictionary of texts that a transaction stores; none if it stores long ones.
pub(in crate::db) fn dictionary(tx: &Tx<'_>) -> Option<Dictionary> {
    tx.shortens().then(|| tx.either(Dictionary::Whole, Dictionary::First))
}

impl Dictionary {
    /// Returns the beginning of its short forms.
    fn mark(self) -> u8 {
        match self {
            Self::First => MARK,
            Self::Whole => LATER_MARK,
        }
    }

    /// Returns its texts.
    fn texts(self) -> &'static TextsByHash {
        match self {
            Self::First => &TEXTS,
            Self::Whole => &ALL_TEXTS,
        }
    }
}

/// The first bytes of a text of the dictionary. None is shorter.
type Beginning = [u8; 4];

/// The texts of the first dictionary by a hash of their beginnings.
static TEXTS: LazyLock<TextsByHash> = LazyLock::new(|| TextsByHash::of(FREQUENT.iter().chain(&RARE)));
/// The same with those that were added.
static ALL_TEXTS: LazyLock<TextsByHash> = LazyLock::new(|| TextsByHash::of(FREQUENT.iter().chain(&RARE).chain(&LATER)));

/// A table with the texts of the dictionary. Texts are looked for at every second or third byte of what is shortened, and mostly
/// there is none.
struct TextsByHash(Vec<Vec<DictionaryText>>);

/// A text of the dictionary.
struct DictionaryText {
    /// The place: that of a text in [`RARE`] is behind those in [`FREQUENT`], and that of one in [`LATER`] behind both.
    place: usize,
    text: &'static [u8],
}

impl TextsByHash {
    fn of(texts: impl Iterator<Item = &'static &'static str>) -> Self {
        let mut rows: Vec<Vec<DictionaryText>> = (0..=u8::MAX).map(|_| vec![]).collect();
        for (place, text) in texts.enumerate() {
            let text = text.as_bytes();
            if let Some(beginning) = text.first_chunk()
                && let Some(row) = rows.get_mut(row_of(*beginning))
            {
                row.push(DictionaryText { place, text });
            }
        }
        for row in &mut rows {
            row.sort_by_key(|known| Reverse(known.text.len()));
        }
        Self(rows)
    }

    /// Returns the longest text with which `rest` begins.
    fn longest(&self, rest: &[u8]) -> Option<&DictionaryText> {
        let row = self.0.get(row_of(*rest.first_chunk()?))?;
        row.iter().find(|known| rest.starts_with(known.text))
    }
}

/// Returns the row of the texts with this beginning.
fn row_of(beginning: Beginning) -> usize {
    // The highest byte of a product depends on all bytes of the number.
    let [.., highest] = u32::from_le_bytes(beginning).wrapping_mul(0x9e37_79b1).to_le_bytes();
    usize::from(highest)
}

/// Returns whether a text is in the short form.
pub(in crate::db) fn is_short(text: &str) -> bool {
    matches!(text.as_bytes().first(), Some(&(MARK | LATER_MARK)))
}

/// Returns the short form of a text; the text itself if that is not longer, if it is no JSON text on one line, or if the short
/// form would be too small a part of it.
pub(in crate::db) fn shorten(text: String, dictionary: Dictionary) -> String {
    if text.len() > MAX_BYTES {
        return text;
    }
    match short_form(text.as_bytes(), dictionary) {
        Some(short) if short.len() < text.len() && !is_too_small(short.len(), text.len()) => short,
        Some(_) | None => text,
    }
}

/// Returns whether a short form of this length is too small a part of its text.
fn is_too_small(short: usize, text: usize) -> bool {
    text > ANY_SHARE_BYTES && short * SMALLEST_SHARE < text
}

/// The kinds of bytes of a text, by what may begin there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteKind {
    /// Nothing: most bytes.
    Plain,
    /// A text of the dictionary.
    OfText,
    /// The end of an object: a text of the dictionary, or an object that is the same as this one.
    OfEnd,
    /// An id.
    OfId,
    /// Nothing that a JSON text on one line has.
    Control,
}

/// The kinds of all bytes.
static KINDS: [ByteKind; 256] = kinds();

const fn kinds() -> [ByteKind; 256] {
    let mut kinds = [ByteKind::Plain; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        kinds[byte as usize] = match byte {
            0..b' ' => ByteKind::Control,
            b'}' => ByteKind::OfEnd,
            b'"' | b',' | b'{' | b'[' | b'\\' => ByteKind::OfText,
            b'0'..=b'9' | b'a'..=b'f' => ByteKind::OfId,
            _ => ByteKind::Plain,
        };
        byte += 1;
    }
    kinds
}

/// A part of a text that has a code.
struct CodedPart {
    code: Code,
    /// Its length.
    len: usize,
}

/// The code of a part of a text.
enum Code {
    /// The text of the dictionary at this place.
    Text(usize),
    /// An object that is the same as the one before it.
    Same,
    /// The halves of a UUID.
    Uuid { high: u64, low: u64 },
    /// The number that hexadecimal digits are.
    Hex(u64),
}

fn short_form(text: &[u8], dictionary: Dictionary) -> Option<String> {
    let texts = dictionary.texts();
    let mut output = Vec::with_capacity(text.len());
    output.push(dictionary.mark());
    // The text between the codes stays as it is, and is copied at once.
    let mut copied = 0;
    let mut at = 0;
    while let Some(plain) = plain_len(text.get(at..)?) {
        at += plain;
        let rest = text.get(at..)?;
        let part = match KINDS[usize::from(*rest.first()?)] {
            ByteKind::Control => return None,
            ByteKind::OfEnd => same_part(text.get(..at)?, rest).or_else(|| text_part(rest, texts)),
            ByteKind::OfText => text_part(rest, texts),
            ByteKind::OfId => id_part(rest),
            ByteKind::Plain => None,
        };
        let Some(CodedPart { code, len }) = part else {
            at += uncoded_len(rest);
            continue;
        };
        output.extend_from_slice(text.get(copied..at)?);
        push_code(&mut output, &code)?;
        at += len;
        copied = at;
    }
    output.extend_from_slice(text.get(copied..)?);
    String::from_utf8(output).ok()
}

/// Returns the number of bytes at the beginning at which nothing with a code begins; none if that are all.
fn plain_len(rest: &[u8]) -> Option<usize> {
    rest.iter()
        .position(|byte| KINDS[usize::from(*byte)] != ByteKind::Plain)
}

/// Returns the number of bytes of which none begins something with a code, if the first one does not.
fn uncoded_len(rest: &[u8]) -> usize {
    // In a row of few digits no id begins.
    let is_digit = |byte: &&u8| KINDS[usize::from(**byte)] == ByteKind::OfId;
    match rest.iter().take(MIN_ID_DIGITS).take_while(is_digit).count() {
        digits @ 1..MIN_ID_DIGITS => digits,
        _ => 1,
    }
}

/// Returns the object that is the same as the one that ends here.
fn same_part(before: &[u8], rest: &[u8]) -> Option<CodedPart> {
    let next = rest.strip_prefix(TREE.as_bytes())?;
    let begin = before.iter().rposition(|byte| *byte == b'{')?;
    let content = before.get(begin + 1..)?;
    let behind = next.strip_prefix(content)?;
    if behind.first() != Some(&b'}') {
        return None;
    }
    Some(CodedPart {
        code: Code::Same,
        len: TREE.len() + content.len() + 1,
    })
}

/// Returns the longest text of the dictionary with which `rest` begins.
fn text_part(rest: &[u8], texts: &TextsByHash) -> Option<CodedPart> {
    let DictionaryText { place, text } = texts.longest(rest)?;
    Some(CodedPart {
        code: Code::Text(*place),
        len: text.len(),
    })
}

/// Returns the id with which `rest` begins.
fn id_part(rest: &[u8]) -> Option<CodedPart> {
    // Both kinds begin like this, and few words do.
    hex_number(rest.get(..MIN_ID_DIGITS)?)?;
    uuid_part(rest).or_else(|| hex_part(rest))
}

/// Returns the UUID with which `rest` begins.
fn uuid_part(rest: &[u8]) -> Option<CodedPart> {
    let digits = rest.get(..UUID_LEN)?;
    if [8, 13, 18, 23].into_iter().any(|at| digits.get(at) != Some(&b'-')) {
        return None;
    }
    let part = |range: Range<usize>| hex_number(digits.get(range)?);
    let high = (part(0..8)? << 32) | (part(9..13)? << 16) | part(14..18)?;
    let low = (part(19..23)? << 48) | part(24..36)?;
    Some(CodedPart {
        code: Code::Uuid { high, low },
        len: UUID_LEN,
    })
}

/// Returns the hexadecimal digits with which `rest` begins, if they are enough.
fn hex_part(rest: &[u8]) -> Option<CodedPart> {
    Some(CodedPart {
        code: Code::Hex(hex_number(rest.get(..HEX_DIGITS)?)?),
        len: HEX_DIGITS,
    })
}

/// Writes a code.
fn push_code(output: &mut Vec<u8>, code: &Code) -> Option<()> {
    match code {
        Code::Same => output.push(SAME),
        Code::Text(place) => push_place(output, *place)?,
        Code::Uuid { high, low } => {
            output.push(UUID);
            push_number(output, *high);
            push_number(output, *low);
        }
        Code::Hex(number) => {
            output.push(HEX);
            push_number(output, *number);
        }
    }
    Some(())
}

/// Writes the code of the text of the dictionary at a place.
fn push_place(output: &mut Vec<u8>, place: usize) -> Option<()> {
    let digit = |place: usize| ZERO.checked_add(u8::try_from(place).ok()?);
    if let Some(code) = CODES.get(place) {
        output.push(*code);
        return Some(());
    }
    let place = place.checked_sub(CODES.len())?;
    match place.checked_sub(RARE.len()) {
        None => output.extend([SECOND, digit(place)?]),
        Some(place) => output.extend([SECOND, THIRD, digit(place)?]),
    }
    Some(())
}

/// Reads up to [`HEX_DIGITS`] digits in lower case.
fn hex_number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((number << 4) | u64::from(value))
    })
}

fn push_number(output: &mut Vec<u8>, mut number: u64) {
    for _ in 0..NUMBER_LEN {
        let digit = u8::try_from(number % BASE).unwrap_or(0);
        output.push(ZERO + digit);
        number /= BASE;
    }
}

/// Returns the text of which this is the short form; none if it is none, or of no text that is shortened.
pub(in crate::db) fn expand(short: &str) -> Option<String> {
    if !is_short(short) {
        return None;
    }
    let mut rest = short.as_bytes().get(1..)?;
    let mut output = String::with_capacity(short.len() * 3);
    let mut copied = rest;
    while let Some((code, behind)) = rest.split_first() {
        if *code >= b' ' {
            rest = behind;
            continue;
        }
        // Text that was copied unchanged ends here.
        push_literal(&mut output, copied, rest)?;
        rest = behind;
        match *code {
            UUID => {
                let high = take_number(&mut rest)?;
                let low = take_number(&mut rest)?;
                write!(
                    output,
                    "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    high >> 32,
                    (high >> 16) & 0xffff,
                    high & 0xffff,
                    low >> 48,
                    low & 0xffff_ffff_ffff
                )
                .ok()?;
            }
            HEX => write!(output, "{:016x}", take_number(&mut rest)?).ok()?,
            SECOND => output.push_str(take_text(&mut rest)?),
            SAME => {
                let content = output.get(output.rfind('{')? + 1..)?.to_owned();
                output.push_str(TREE);
                output.push_str(&content);
                output.push('}');
            }
            code => {
                let place = CODES.iter().position(|known| *known == code)?;
                output.push_str(FREQUENT.get(place)?);
            }
        }
        copied = rest;
        if output.len() > MAX_BYTES {
            return None;
        }
    }
    push_literal(&mut output, copied, rest)?;
    Some(output)
}

/// Appends the part of `from` that is before its end `rest`.
fn push_literal(output: &mut String, from: &[u8], rest: &[u8]) -> Option<()> {
    let literal = from.get(..from.len().checked_sub(rest.len())?)?;
    output.push_str(std::str::from_utf8(literal).ok()?);
    Some(())
}

/// Reads the place of a text in [`RARE`] or [`LATER`], and moves `rest` behind it. Returns the text.
fn take_text(rest: &mut &[u8]) -> Option<&'static str> {
    let (first, behind) = rest.split_first()?;
    *rest = behind;
    if *first != THIRD {
        return RARE.get(usize::from(first.checked_sub(ZERO)?)).copied();
    }
    let (place, behind) = rest.split_first()?;
    *rest = behind;
    LATER.get(usize::from(place.checked_sub(ZERO)?)).copied()
}

/// Reads a number and moves `rest` behind it.
fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let (digits, behind) = rest.split_at_checked(NUMBER_LEN)?;
    *rest = behind;
    digits.iter().rev().try_fold(0_u64, |number, digit| {
        let digit = digit.checked_sub(ZERO).map(u64::from).filter(|digit| *digit < BASE)?;
        number.checked_mul(BASE)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Shortens a text with each dictionary, and checks that it can be expanded. Returns the short form with the first one.
    fn short(text: &str) -> String {
        short_with(text, Dictionary::Whole);
        short_with(text, Dictionary::First)
    }

    /// Shortens a text and checks that it can be expanded. Returns the short form.
    fn short_with(text: &str, dictionary: Dictionary) -> String {
        let short = shorten(text.to_owned(), dictionary);
        let expanded = if is_short(&short) {
            expand(&short).expect("it can be expanded")
        } else {
            short.clone()
        };
        assert_eq!(expanded, text);
        short
    }

    #[test]
    fn the_texts_of_a_step_become_short() {
        let texts = [
            (r#"{"phase":"start"}"#, 2),
            (r#"{"phase":{"hooks":{"point":"before_agent","next":0}}}"#, 2),
            (
                r#"{"fact":"started","base":"01a22810-2e92-718b-a207-ed69ac44c624","attempt":1,"resumed":false}"#,
                24,
            ),
            (
                r#"{"fact":"ended","status":"success","used":{"own":{"model_calls":1,"input_tokens":46,"output_tokens":20},"tree":{"model_calls":1,"input_tokens":46,"output_tokens":20}}}"#,
                12,
            ),
            (
                r#"[{"messages":[{"type":"human","id":"cf2e4bd2-ad28-4493-830a-809b3f97f75a","content":"go"}]}]"#,
                27,
            ),
            (
                r#"{"fact":"calling","head":"01a22812-6463-7538-a5bd-1e5cc0b3e5c4","calls":[[0,"call_7da33555403f49cf"]]}"#,
                46,
            ),
        ];
        for (text, len) in texts {
            assert_eq!(short(text).len(), len, "{text}");
            assert_eq!(short_with(text, Dictionary::Whole).len(), len, "{text}");
        }
        let answer = r#"[{"messages":[{"type":"ai","id":"lc_run--cf2e4bd2-ad28-4493-830a-809b3f97f75a","name":"a","content":"b","usage_metadata":{"input_tokens":46,"output_tokens":2,"total_tokens":48,"input_token_details":{},"output_token_details":{}},"additional_kwargs":{"refusal":null},"response_metadata":{"finish_reason":"stop","model_name":"m","model_provider":"openai","id":"chatcmpl-1"}}]}]"#;
        assert_eq!(short_with(answer, Dictionary::Whole).len(), 46);
        assert!(short(answer).len() > 100);
    }

    #[test]
    fn an_id_is_found_behind_digits_that_are_none() {
        let uuid = "01a22810-2e92-718b-a207-ed69ac44c624";
        for (text, len) in [
            (format!(r#"{{"a":"f{uuid}"}}"#), 31),
            (format!(r#"{{"a":"abcdef1{uuid}"}}"#), 37),
            (format!(r#"{{"a":"bead-{uuid}"}}"#), 35),
            (r#"{"a":"x0123456789abcdefbead"}"#.to_owned(), 25),
        ] {
            assert_eq!(short(&text).len(), len, "{text}");
        }
    }

    #[test]
    fn every_text_is_restored() {
        let texts = [
            "",
            "[]",
            "{}",
            "null",
            "plain words, é, 漢字 and 🦀",
            r#"["é漢🦀","},\"tree\":{\"model_calls\":"]"#,
            r#"{"a":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}"#,
            r#"{"a":"0123456789ABCDEF0123456789ABCDEF","b":"0123456789abcde"}"#,
            r#"{"a":"00000000-0000-0000-0000-000000000000","b":"ffffffff-ffff-ffff-ffff-ffffffffffff"}"#,
            r#"{"a":"FFFFFFFF-ffff-ffff-ffff-ffffffffffff","b":"ffffffff-ffff-ffff-ffff-fffffffffff"}"#,
            r#"{"a":"ffffffff-ffff-ffff-ffff-ffffffffffffffffffffffffffffffff"}"#,
            r#"{"own":{},"tree":{},"tree":{}}"#,
            r#"{"own":{"a":1},"tree":{"a":1,"b":2},"tree":{"a":1,"b":2},"tree":{"a":1}"#,
            r#"},"tree":{},"tree":{}"#,
            r#"{"é":{"b":"漢"},"tree":{"b":"漢"}"#,
        ];
        for text in texts {
            short(text);
        }
        for text in LATER {
            assert!(short_with(text, Dictionary::Whole).len() <= 4, "{text}");
        }
        for text in FREQUENT.into_iter().chain(RARE) {
            assert!(short(text).len() <= 3, "{text}");
        }
        for text in FREQUENT.into_iter().chain(RARE).chain(LATER) {
            assert!(text.len() > 3, "{text}");
            assert!("\"{}[,\\".contains(&text[..1]), "{text}");
            for end in 1..text.len() {
                short(&text[end..]);
                short(&text[..end]);
                short(&text[..end].repeat(3));
            }
        }
        assert_eq!(short(&"x".repeat(MAX_BYTES + 1)).len(), MAX_BYTES + 1);
    }

    /// A part of a text: from the dictionary, also without its beginning, an id, or something near them.
    fn part() -> impl Strategy<Value = String> {
        let words: Vec<&str> = FREQUENT.into_iter().chain(RARE).chain(LATER).collect();
        let ends = (prop::sample::select(words.clone()), any::<usize>());
        prop_oneof![
            prop::sample::select(words).prop_map(str::to_owned),
            ends.prop_map(|(word, at)| word[at % word.len()..].to_owned()),
            r#"[{}\[\],:"\\ ]{1,4}"#,
            "[0-9a-f]{1,40}",
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            r#"\},"tree":\{("a":1\})?"#,
            r"\PC{0,6}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_sequence_of_parts_is_restored(parts in prop::collection::vec(part(), 0..12)) {
            short(&parts.concat());
        }

        #[test]
        fn a_text_that_begins_like_a_short_one_does_no_harm(codes in "[\u{1}-\u{1f}!-~é]{0,40}") {
            expand(&format!("\u{1}{codes}"));
            expand(&format!("\u{2}{codes}"));
        }
    }

    #[test]
    fn what_is_no_json_text_on_one_line_stays_as_it_is() {
        let packed = "blobs1:[{\"at\":1}]\n{\"phase\":\"start\"}";
        for text in [packed, "\u{1}x", "{\"phase\":\"start\"}\t", "\u{0}"] {
            assert_eq!(shorten(text.to_owned(), Dictionary::Whole), text);
        }
    }

    #[test]
    fn a_short_text_is_no_tiny_part_of_a_long_one() {
        let phase = r#"{"phase":"start"},"#;
        let some = format!("[{}0]", phase.repeat(50));
        assert!(short(&some).len() < some.len() / 4);
        let many = format!("[{}0]", phase.repeat(1000));
        assert_eq!(short(&many), many);
        let mixed = format!("[{}\"{}\"]", phase.repeat(500), "x".repeat(9000));
        assert!(short(&mixed).len() < mixed.len() * 7 / 10);
    }

    #[test]
    fn nothing_expands_to_more_than_the_longest_text() {
        let content = "1".repeat(1000);
        let most = format!("\u{1}{{\"own\":{{{content}{}}}", "\u{5}".repeat(30));
        assert!(expand(&most).is_some_and(|text| text.len() < MAX_BYTES));
        let bomb = format!("\u{1}{{\"own\":{{{content}{}}}", "\u{5}".repeat(100_000));
        assert_eq!(expand(&bomb), None);
    }

    #[test]
    fn what_is_no_short_form_is_not_expanded() {
        for text in [
            "",
            "{}",
            "\u{1}\u{2}short",
            "\u{1}\u{4}",
            "\u{1}\u{4}\u{7f}",
            "\u{2}\u{4} ",
            "\u{2}\u{4} ~",
            "\u{1}\n",
            "\u{1}\u{1}",
            "\u{1}\u{3}~~~~~~~~~~",
            "\u{1}\u{5}",
        ] {
            assert_eq!(expand(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_dictionary_is_the_one_of_stored_texts() {
        // FNV-1a. A changed dictionary makes stored texts unreadable.
        let digest = |words: &[&str]| {
            let bytes = words.join("\n").into_bytes();
            bytes.into_iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
                (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        let first: Vec<&str> = FREQUENT.into_iter().chain(RARE).collect();
        let words: Vec<&str> = first.iter().copied().chain(LATER).collect();
        for word in &words {
            assert!(word.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{word}");
            assert_eq!(words.iter().filter(|other| *other == word).count(), 1, "{word}");
        }
        assert_eq!(format!("{:016x}", digest(&first)), "a07eecd16f2c3b05");
        assert_eq!(format!("{:016x}", digest(&words)), "6888b623fac0c9b6");
    }
}
