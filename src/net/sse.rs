//! A parser of server-sent events (HTML standard, 9.2.6) that limits the size of an event. The crates for this buffer
//! an endless event without limit.

/// A server-sent event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerFrame {
    /// The event name; empty if the server sends none.
    pub event: String,
    /// The id, if the server sends one.
    pub id: Option<String>,
    /// The data.
    pub data: String,
}

/// The byte order mark that may precede a stream.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Splits bytes into events.
#[derive(Debug)]
pub struct Frames {
    longest: usize,
    line: Vec<u8>,
    /// Whether the last line ended with CR, so that an LF that follows belongs to it.
    ends_with_cr: bool,
    /// Whether no line was read yet.
    is_first: bool,
    frame: PeerFrame,
    /// Whether the current event is too long.
    is_too_long: bool,
}

impl Frames {
    /// Creates a parser for events of up to `longest` bytes. Longer ones are dropped.
    pub fn up_to(longest: usize) -> Self {
        Self {
            longest,
            line: vec![],
            ends_with_cr: false,
            is_first: true,
            frame: PeerFrame::default(),
            is_too_long: false,
        }
    }

    /// The number of buffered bytes of an incomplete event.
    pub fn pending(&self) -> usize {
        self.line.len() + self.frame.data.len()
    }

    /// Adds bytes and returns the events that they complete. A line ends with LF, CR, or both.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<PeerFrame> {
        let mut complete = vec![];
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\r' | b'\n')) {
            if std::mem::take(&mut self.ends_with_cr) && part == b"\n" {
                continue;
            }
            let text = part.strip_suffix(b"\n").or_else(|| part.strip_suffix(b"\r"));
            let more = text.unwrap_or(part);
            if self.line.len() + more.len() > self.longest {
                self.line.clear();
                self.is_too_long = true;
            } else {
                self.line.extend_from_slice(more);
            }
            if text.is_some() {
                self.ends_with_cr = part.ends_with(b"\r");
                let line = std::mem::take(&mut self.line);
                let is_first = std::mem::take(&mut self.is_first);
                let line = line.strip_prefix(BOM).filter(|_| is_first).unwrap_or(&line);
                complete.extend(self.read(&String::from_utf8_lossy(line)));
            }
        }
        complete
    }

    /// Reads a line. An empty one completes an event.
    fn read(&mut self, line: &str) -> Option<PeerFrame> {
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            let is_whole = !std::mem::take(&mut self.is_too_long);
            return (is_whole && !(frame.event.is_empty() && frame.data.is_empty())).then_some(frame);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.frame.event),
            "id" => self.frame.id = Some(value.to_owned()),
            "data" if self.frame.data.len() + value.len() > self.longest => self.is_too_long = true,
            "data" => {
                if !self.frame.data.is_empty() {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            // Comments (heartbeats) and unknown fields.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: usize = 1000;

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let text = ": heartbeat\n\nevent: messages\r\ndata: [1,\r\ndata: 2]\r\nid: 7\r\n\r\ndata:{}\n\ndata: left";
        let expected = [
            PeerFrame {
                event: "messages".to_owned(),
                id: Some("7".to_owned()),
                data: "[1,\n2]".to_owned(),
            },
            PeerFrame {
                event: String::new(),
                id: None,
                data: "{}".to_owned(),
            },
        ];
        for size in 1..text.len() {
            let mut frames = Frames::up_to(LONGEST);
            let found: Vec<PeerFrame> = text
                .as_bytes()
                .chunks(size)
                .flat_map(|bytes| frames.take(bytes))
                .collect();
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn blanks_at_the_end_of_data_are_kept_and_every_kind_of_line_end_is_known() {
        let expected = ["a  ", " b\t"].map(|data| PeerFrame {
            data: data.to_owned(),
            ..PeerFrame::default()
        });
        for end in ["\n", "\r", "\r\n"] {
            let text = format!("\u{feff}data: a  {end}{end}data:  b\t{end}{end}");
            for size in 1..=text.len() {
                let mut frames = Frames::up_to(LONGEST);
                let found: Vec<PeerFrame> = text
                    .as_bytes()
                    .chunks(size)
                    .flat_map(|bytes| frames.take(bytes))
                    .collect();
                assert_eq!(found, expected, "{end:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line_only() {
        let mut frames = Frames::up_to(LONGEST);
        let found = frames.take("\u{feff}data: a\n\n\u{feff}data: b\n\n".as_bytes());
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn an_event_without_an_end_takes_no_more_than_its_share() {
        let mut frames = Frames::up_to(LONGEST);
        for _ in 0..10 {
            assert_eq!(frames.take(&vec![b'x'; LONGEST / 2]), []);
        }
        assert!(frames.pending() <= LONGEST);
        let found = frames.take(b"\n\nevent: end\ndata: 1\n\n");
        assert_eq!(found.len(), 1);
    }
}
