//! The part of a scope that only programs have, and the outputs of a program while it works.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::domain::event::Chunk;
use crate::domain::state::Update;

/// The maximum number of outputs of a program that wait for the loop. Beyond it, the program waits.
const CAPACITY: usize = 64;

/// The part of a scope that only programs have.
#[derive(Debug, Default)]
pub struct ProgramScope {
    /// The number of questions that the program has asked so far: the same when it runs again after a crash.
    pub asked: u32,
    /// Cancelled when this server stops, or has lost the run. Another process continues the run, so work on other servers is left
    /// as it is.
    pub leave: CancellationToken,
    output: Option<mpsc::Sender<ProgramOutput>>,
}

/// An output of a program while it works.
#[derive(Debug)]
pub(crate) enum ProgramOutput {
    /// A piece of the message with this id. Clients that follow the run see the piece at once; it is not stored.
    Piece {
        /// The id of the message.
        message: String,
        /// The piece; none for the beginning of the message.
        chunk: Option<Chunk>,
    },
    /// An update before the result: a checkpoint of its own, stored together with the end of the work.
    Write(Update),
}

impl ProgramScope {
    /// Returns the scope of a program that has asked this number of questions, and the receiver of its output.
    pub(crate) fn new(asked: u32, leave: CancellationToken) -> (Self, mpsc::Receiver<ProgramOutput>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let output = Some(sender);
        (Self { asked, leave, output }, receiver)
    }

    /// Sends a piece of the message with this id, or its beginning.
    pub(crate) async fn stream(&self, message: &str, chunk: Option<Chunk>) {
        let message = message.to_owned();
        self.send(ProgramOutput::Piece { message, chunk }).await;
    }

    /// Writes `update` into the state before the result of the program.
    pub(crate) async fn write(&self, update: Update) {
        if !update.is_empty() {
            self.send(ProgramOutput::Write(update)).await;
        }
    }

    async fn send(&self, output: ProgramOutput) {
        if let Some(sender) = &self.output {
            // The receiver is gone when the work was stopped.
            drop(sender.send(output).await);
        }
    }
}
