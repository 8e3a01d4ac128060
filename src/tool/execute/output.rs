//! The output of a running command: streamed to clients as it comes, and kept up to a limit.

use std::collections::VecDeque;

use crate::tool::progress::ProgressSink;

/// The output of a command. Of a long one the first half and the last half of what is kept, however much is written.
pub struct CommandOutput<'a> {
    progress: &'a ProgressSink,
    call: &'a str,
    /// The number of bytes that are kept of the beginning, and of the end.
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    /// The bytes that wait for the rest of their character.
    incomplete: Vec<u8>,
    /// The number of bytes that may still be streamed.
    unstreamed: usize,
}

impl<'a> CommandOutput<'a> {
    /// Creates the output of the call of this id, of which `max_bytes` are kept.
    pub fn new(max_bytes: usize, progress: &'a ProgressSink, call: &'a str) -> Self {
        Self {
            progress,
            call,
            half: (max_bytes / 2).max(1),
            head: vec![],
            tail: VecDeque::new(),
            total: 0,
            incomplete: vec![],
            unstreamed: max_bytes,
        }
    }

    /// Adds what the command has written next.
    pub async fn push(&mut self, bytes: &[u8]) {
        self.keep(bytes);
        let streamed = bytes.len().min(self.unstreamed);
        self.unstreamed -= streamed;
        if streamed == 0 {
            return;
        }
        self.incomplete.extend_from_slice(&bytes[..streamed]);
        let end = complete_end(&self.incomplete);
        let rest = self.incomplete.split_off(end);
        let complete = std::mem::replace(&mut self.incomplete, rest);
        self.send(&complete).await;
    }

    /// Streams what is left at the end.
    pub async fn finish(&mut self) {
        let rest = std::mem::take(&mut self.incomplete);
        self.send(&rest).await;
    }

    async fn send(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.progress
                .send_output(self.call, String::from_utf8_lossy(bytes))
                .await;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.total = self
            .total
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let to_head = bytes.len().min(self.half.saturating_sub(self.head.len()));
        self.head.extend_from_slice(&bytes[..to_head]);
        let rest = &bytes[to_head..];
        // Only the last part of a long piece can stay.
        let rest = &rest[rest.len().saturating_sub(self.half)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Returns the number of bytes that the command has written.
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Returns whether a part of the output was left out.
    pub fn is_truncated(&self) -> bool {
        self.left_out() > 0
    }

    fn left_out(&self) -> u64 {
        let kept = u64::try_from(self.head.len() + self.tail.len()).unwrap_or(u64::MAX);
        self.total.saturating_sub(kept)
    }

    /// Returns the output as text, without the end of its last line.
    pub fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let left_out = self.left_out();
        let text = if left_out == 0 {
            let all = [self.head.as_slice(), tail.as_slice()].concat();
            String::from_utf8_lossy(&all).into_owned()
        } else {
            let head = String::from_utf8_lossy(&self.head);
            let tail = String::from_utf8_lossy(&tail);
            format!("{head}\n[{left_out} bytes were left out here]\n{tail}")
        };
        text.strip_suffix('\n').map(str::to_owned).unwrap_or(text)
    }
}

/// Returns the end of the last complete character.
fn complete_end(bytes: &[u8]) -> usize {
    // A character has at most four bytes, so only the last three can be incomplete.
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let wanted = match bytes[at] {
            0b1100_0000..=0b1101_1111 => 2,
            0b1110_0000..=0b1110_1111 => 3,
            0b1111_0000..=0b1111_0111 => 4,
            0b1000_0000..=0b1011_1111 => continue,
            0..=0b0111_1111 | 0b1111_1000..=0b1111_1111 => 1,
        };
        return if wanted > back { at } else { bytes.len() };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::progress::ProgressEvent;

    fn streamed(progress: &ProgressSink) -> String {
        let texts = progress.drain().into_iter().map(|event| match event {
            ProgressEvent::Output { text, .. } => text,
            ProgressEvent::Custom(value) | ProgressEvent::Notice(value) => panic!("{value}"),
        });
        texts.collect()
    }

    #[tokio::test]
    async fn a_short_output_is_kept_and_streamed_whole_with_characters_that_come_in_pieces() {
        let progress = ProgressSink::default();
        let mut output = CommandOutput::new(1_000, &progress, "c1");
        for byte in "größer €, 🦦\n".as_bytes() {
            output.push(&[*byte]).await;
        }
        output.push(&[0xff, b'x', 0xe2, 0x82]).await;
        output.finish().await;
        assert_eq!(streamed(&progress), "größer €, 🦦\n\u{fffd}x\u{fffd}");
        assert_eq!(output.text(), "größer €, 🦦\n\u{fffd}x\u{fffd}");
        assert!(!output.is_truncated());
    }

    #[tokio::test]
    async fn of_a_long_output_the_beginning_and_the_end_are_kept() {
        let progress = ProgressSink::default();
        let mut output = CommandOutput::new(20, &progress, "c1");
        output.push(b"0123456789").await;
        output.push(&vec![b'x'; 100_000]).await;
        output.push(b"abcdefghij\n").await;
        output.finish().await;
        assert_eq!(
            output.text(),
            "0123456789\n[100001 bytes were left out here]\nbcdefghij"
        );
        assert_eq!(output.total_bytes(), 100_021);
        assert!(output.is_truncated());
        assert_eq!(streamed(&progress), "0123456789xxxxxxxxxx");
    }
}
