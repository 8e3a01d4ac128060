//! The rate at which a server may send messages that are not answers.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The maximum number of messages per second that are not answers. Further ones wait in the pipe or the socket, and the
/// server with them.
const MAX_PER_SECOND: u32 = 1_000;
const SECOND: Duration = Duration::from_secs(1);

/// The number of messages in the current second that are not answers.
#[derive(Debug)]
pub(super) struct Pace {
    count: u32,
    since: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            count: 0,
            since: Instant::now(),
        }
    }

    /// Counts a message.
    pub(super) fn count(&mut self) {
        self.count += 1;
    }

    /// Waits for the rest of the second if there were too many messages. The future may be dropped at any time.
    pub(super) async fn wait(&mut self) {
        if self.count >= MAX_PER_SECOND {
            sleep_until(self.since + SECOND).await;
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn more_than_a_thousand_messages_take_more_than_a_second() {
        let begun = Instant::now();
        let mut pace = Pace::new();
        for _ in 0..MAX_PER_SECOND {
            pace.wait().await;
            pace.count();
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        pace.wait().await;
        assert_eq!(begun.elapsed(), SECOND);
    }
}
