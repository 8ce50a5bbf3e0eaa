//! `onefold top`: what volumes, hosts and reactors do now, from the daemon's status taken again and again.
//!
//! Guarantees: one request an interval, none before the last is answered; as text or JSON at most `ROWS_MAX` rows of each
//! table; the terminal is as it was when the command ends, also by an error or Ctrl-C.

mod rates;
mod screen;
mod view;

use std::io::{self, IsTerminal, Stdout};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use api::client::Client;
use clap::Args;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use subsystem::errors::Failure;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::args::PoolArg;
use super::run::converse;
use super::{Outcome, print, print_json, print_line};
use rates::{Rates, Sample};
use screen::{Pressed, Screen};

/// Rows of a table as text or JSON: the busiest ones.
const ROWS_MAX: usize = 200;

/// Keys that wait to be looked at.
const KEYS_MAX: usize = 64;

/// `onefold top`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold top\n  onefold top --once --json --interval 10\n\n\
                  Keys: Tab takes the next table, the arrows, PgUp, PgDn, Home and End select a row, s (or >) and <\n\
                  the column to sort by, r turns the order round, Esc selects nothing, q or Ctrl-C ends it.\n\
                  Without a terminal it prints once, as --once does."
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
struct Display {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Display {
    fn open() -> io::Result<Self> {
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let opened = Self { terminal };
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(opened)
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
    }
}

/// The keys of the terminal come one by one and are not shown as long as this lives.
struct Keys {
    pressed: mpsc::Receiver<Event>,
}

impl Keys {
    /// `None` where standard input is no terminal.
    fn open() -> Option<Self> {
        if !io::stdin().is_terminal() {
            return None;
        }
        enable_raw_mode().ok()?;
        let (tell, pressed) = mpsc::channel(KEYS_MAX);
        // Reading cannot be given up: the thread ends with the process, or with the terminal.
        thread::spawn(move || {
            while let Ok(event) = event::read() {
                if tell.blocking_send(event).is_err() {
                    return;
                }
            }
        });
        Some(Self { pressed })
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = disable_raw_mode();
    }
}

/// The next thing that happens at the terminal; `None`: it is gone.
async fn next_of(keys: &mut Option<Keys>) -> Option<Event> {
    match keys {
        Some(keys) => keys.pressed.recv().await,
        None => std::future::pending().await,
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
    let mut opened = Display::open().map_err(cannot)?;
    let mut keys = Keys::open();
    let mut screen = Screen::default();
    // All rows: the terminal shows what is scrolled to.
    let between = |last: &Sample, now: &Sample| Rates::between(last, now, usize::MAX);
    let mut rates = between(&first, &first);
    let mut last = first;
    loop {
        let drawn = opened.terminal.draw(|frame| screen.draw(frame, &rates));
        if drawn.is_err() {
            return Ok(());
        }
        let due = tokio::time::Instant::from_std(last.at + interval);
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = resized.recv() => {}
            event = next_of(&mut keys) => match event {
                None => return Ok(()),
                Some(Event::Key(key)) if screen.press(key) == Pressed::Quit => return Ok(()),
                Some(_) => {}
            },
            () = tokio::time::sleep_until(due) => {
                let now = look(client).await?;
                rates = between(&last, &now);
                last = now;
            }
        }
    }
}
