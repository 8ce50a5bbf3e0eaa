//! What a receiver answers on its standard output, to a sender that listens.
//!
//! Guarantee: the sender hears from a receiver that lives every few seconds, whatever that is busy with.

use std::io::{self, Write};
use std::thread::JoinHandle;
use std::time::Duration;

use streams::{Answer, AnswerEncoder, Exchange};
use subsystem::errors::Failure;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Answers that wait for who reads them.
const WAITING: usize = 64;

/// How often a sign of life is given.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The answers to a stream.
pub(super) struct Answers {
    to: Sender<Answer>,
    writer: JoinHandle<io::Result<()>>,
}

impl Answers {
    /// Begins to answer.
    pub(super) fn begin<W: Write + Send + 'static>(output: W, exchange: &Exchange) -> Self {
        let (to, answers) = channel(WAITING);
        let exchange = exchange.clone();
        let writer = std::thread::spawn(move || write_all(output, &exchange, answers));
        let alive = to.downgrade();
        std::thread::spawn(move || {
            // When the answers end there is nobody to say it to.
            while let Some(to) = alive.upgrade() {
                if let Err(TrySendError::Closed(_)) = to.try_send(Answer::Working) {
                    return;
                }
                drop(to);
                // A pace, and no wait for something. Who ends the answers does not wait for this thread.
                std::thread::sleep(ALIVE_INTERVAL);
            }
        });
        Self { to, writer }
    }

    /// Says something.
    pub(super) async fn say(&self, answer: Answer) -> Result<(), Failure> {
        let said = self.to.send(answer).await;
        said.map_err(|_| nobody_listens(&io::ErrorKind::BrokenPipe.into()))
    }

    /// Ends when all was said.
    pub(super) fn end(self) -> Result<(), Failure> {
        let Self { to, writer } = self;
        drop(to);
        let written = writer.join();
        let written = written.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
        written.map_err(|error| nobody_listens(&error))
    }
}

fn nobody_listens(error: &io::Error) -> Failure {
    Failure::unavailable(format!(
        "the sender does not listen to answers any more ({error}): it says why"
    ))
}

fn write_all(
    output: impl Write,
    exchange: &Exchange,
    mut answers: Receiver<Answer>,
) -> io::Result<()> {
    let mut encoder = AnswerEncoder::new(output, exchange)?;
    while let Some(answer) = answers.blocking_recv() {
        encoder.answer(&answer)?;
    }
    Ok(())
}
