//! `onefold top`: what volumes, hosts and reactors do now, from the daemon's status taken again and again.
//!
//! Guarantees: one request an interval, none before the last is answered; at most `ROWS_MAX` rows of each table; the terminal
//! is as it was when the command ends, also by an error or Ctrl-C.

mod rates;
mod view;

use std::io::{self, IsTerminal, Read, Stdout, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use api::client::Client;
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use subsystem::errors::Failure;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::args::PoolArg;
use super::run::converse;
use super::{Outcome, print, print_json, print_line};
use rates::{Rates, Sample};

/// Takes the terminal's other screen, without the cursor (xterm's private modes 1049 and 25).
const OPEN: &str = "\u{1b}[?1049h\u{1b}[?25l";
/// Gives it back.
const CLOSE: &str = "\u{1b}[?25h\u{1b}[?1049l";

/// Rows of a table: the busiest ones.
const ROWS_MAX: usize = 200;

/// `onefold top`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold top\n  onefold top --once --json --interval 10\n\n\
                  q or Ctrl-C ends it. Without a terminal it prints once, as --once does."
)]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub interval: u16,
    /// Look once over the interval, and print that
    #[arg(long)]
    pub once: bool,
    /// The daemon's pool.
    #[command(flatten)]
    pub pool: PoolArg,
    /// Print JSON; without --once a line for each interval
    #[arg(long)]
    pub json: bool,
}

/// `onefold top`
pub(super) fn run(args: &TopArgs) -> Outcome {
    let client = Client::new(&args.pool.pool);
    let interval = Duration::from_secs(args.interval.into());
    let is_live = !args.once && !args.json && io::stdout().is_terminal();
    converse(async {
        let mut last = look(&client).await?;
        if is_live {
            return show(last, &client, interval).await;
        }
        loop {
            tokio::time::sleep(interval).await;
            let now = look(&client).await?;
            let rates = Rates::between(&last, &now, ROWS_MAX);
            match args.json {
                true if args.once => print_json(&rates)?,
                // One line each: a reader can take them apart.
                true => print_line(&rates)?,
                false => print(&view::text(&rates)),
            }
            if args.once || !args.json {
                return Ok(());
            }
            last = now;
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Asks the daemon.
async fn look(client: &Client) -> Result<Sample, Failure> {
    let status = client.status().await?;
    Ok(Sample {
        at: Instant::now(),
        status,
    })
}

/// The terminal's other screen; the first one is as it was when this is dropped.
struct Screen(Stdout);

impl Screen {
    fn open() -> io::Result<Self> {
        let mut screen = Self(io::stdout());
        screen.write(OPEN)?;
        Ok(screen)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let mut stdout = self.0.lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = self.write(CLOSE);
    }
}

/// The keys of the terminal come one by one and are not shown as long as this lives.
struct Keys {
    before: Termios,
}

impl Keys {
    /// `None` where standard input is no terminal.
    fn open() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut alone = before.clone();
        alone.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
        tcsetattr(io::stdin(), OptionalActions::Now, &alone).ok()?;
        Some(Self { before })
    }

    /// Waits for the key that ends it.
    async fn wait_for_end(&self) {
        let (tell, is_over) = oneshot::channel();
        // Reading cannot be given up: the thread ends with the process.
        thread::spawn(move || {
            let mut keys = io::stdin().lock().bytes();
            let over = keys.find(|key| !matches!(key, Ok(key) if *key != b'q'));
            let _ = tell.send(over);
        });
        let _ = is_over.await;
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Draws until somebody ends it: q, Ctrl-C, SIGTERM, or a terminal that is gone.
async fn show(first: Sample, client: &Client, interval: Duration) -> Result<(), Failure> {
    let cannot = |error: io::Error| {
        Failure::unavailable(format!(
            "this terminal cannot show it: {error}; `onefold top --once` prints it"
        ))
    };
    let [mut interrupt, mut terminate, mut resized] = [
        signal(SignalKind::interrupt()).map_err(cannot)?,
        signal(SignalKind::terminate()).map_err(cannot)?,
        signal(SignalKind::window_change()).map_err(cannot)?,
    ];
    let mut screen = Screen::open().map_err(cannot)?;
    let keys = Keys::open();
    let ended = async {
        match &keys {
            Some(keys) => keys.wait_for_end().await,
            None => std::future::pending().await,
        }
    };
    let mut ended = std::pin::pin!(ended);
    let mut rates = Rates::between(&first, &first, ROWS_MAX);
    let mut last = first;
    loop {
        let size = terminal_size();
        if screen.write(&view::screen(&rates, size)).is_err() {
            return Ok(());
        }
        let due = tokio::time::Instant::from_std(last.at + interval);
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            () = &mut ended => return Ok(()),
            _ = resized.recv() => {}
            () = tokio::time::sleep_until(due) => {
                let now = look(client).await?;
                rates = Rates::between(&last, &now, ROWS_MAX);
                last = now;
            }
        }
    }
}

/// Columns and lines of the terminal.
fn terminal_size() -> (usize, usize) {
    let (lines, columns) = console::Term::stdout().size();
    (columns.into(), lines.into())
}
