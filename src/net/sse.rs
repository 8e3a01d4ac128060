//! Server-sent events, cut out of the bytes in which they come.

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// Its kind; empty where the server names none.
    pub event: String,
    /// Its place in the stream, where the server gives one.
    pub id: Option<String>,
    /// What it says.
    pub data: String,
}

/// Cuts events out of bytes.
#[derive(Debug)]
pub struct Frames {
    longest: usize,
    line: Vec<u8>,
    frame: Frame,
    /// Whether the event under way is too long.
    spoilt: bool,
}

impl Frames {
    /// Cuts out events of up to `longest` bytes; of a longer one nothing is kept.
    pub fn up_to(longest: usize) -> Self {
        Self {
            longest,
            line: vec![],
            frame: Frame::default(),
            spoilt: false,
        }
    }

    /// How many bytes have come of an event that is not complete.
    pub fn pending(&self) -> usize {
        self.line.len() + self.frame.data.len()
    }

    /// Takes more bytes in, and gives the events that are complete with them.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let mut complete = vec![];
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + part.len() > self.longest {
                self.line.clear();
                self.spoilt = true;
            } else {
                self.line.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(line.trim_ascii_end());
                complete.extend(self.read(&line));
            }
        }
        complete
    }

    /// Reads a line; gives the event that it ends.
    fn read(&mut self, line: &str) -> Option<Frame> {
        if line.is_empty() {
            let frame = std::mem::take(&mut self.frame);
            let is_whole = !std::mem::take(&mut self.spoilt);
            return (is_whole && !(frame.event.is_empty() && frame.data.is_empty())).then_some(frame);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.frame.event),
            "id" => self.frame.id = Some(value.to_owned()),
            "data" if self.frame.data.len() + value.len() > self.longest => self.spoilt = true,
            "data" => {
                if !self.frame.data.is_empty() {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            // A comment, which is a sign of life, or something that nobody knows.
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
            Frame {
                event: "messages".to_owned(),
                id: Some("7".to_owned()),
                data: "[1,\n2]".to_owned(),
            },
            Frame {
                event: String::new(),
                id: None,
                data: "{}".to_owned(),
            },
        ];
        for size in 1..text.len() {
            let mut frames = Frames::up_to(LONGEST);
            let found: Vec<Frame> = text
                .as_bytes()
                .chunks(size)
                .flat_map(|bytes| frames.take(bytes))
                .collect();
            assert_eq!(found, expected, "in pieces of {size}");
        }
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
