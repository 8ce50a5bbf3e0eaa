//! Rates on the screen, and as text.

use api::status::{Latencies, Operation};

use super::super::table::{Align, table};
use super::rates::{IoRates, Rates};
use crate::size::format_human;
use crate::time::{format_duration, format_latency};

/// The terminal's sequences: to the first place, and what erases the rest of a line and of the screen (ECMA-48).
const HOME: &str = "\u{1b}[H";
const ERASE_REST: &str = "\u{1b}[K";
const ERASE_BELOW: &str = "\u{1b}[J";

/// Tables on the screen.
const PARTS: usize = 3;

/// What a name is shortened to at least.
const NAME_CHARS_MIN: usize = 8;

/// What a name keeps while a table has columns that can be left out.
const NAME_CHARS: usize = 24;

/// A table: its headings, rows, and how many columns at the left are text. The first column has names.
struct Part {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    texts: usize,
    /// Columns that are left out where the terminal is narrow, the last one first.
    spare: Vec<usize>,
}

impl Part {
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let heading = self.headings.get(column).copied().unwrap_or_default();
        let widths = cells.map(String::as_str).chain([heading]);
        widths.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    /// Makes it as narrow as the terminal: rates must be seen, names may be shortened.
    fn fit(&mut self, columns: usize) {
        let beside_names = |part: &Self| -> usize {
            let others = 1..part.headings.len();
            others.map(|column| 2 + part.width(column)).sum()
        };
        let names = self.width(0).min(NAME_CHARS);
        while names + beside_names(self) > columns
            && let Some(spare) = self.spare.pop()
        {
            self.headings.remove(spare);
            self.rows.iter_mut().for_each(|row| drop(row.remove(spare)));
            self.texts -= usize::from(spare < self.texts);
        }
        let room = columns
            .saturating_sub(beside_names(self))
            .max(NAME_CHARS_MIN);
        for name in self.rows.iter_mut().filter_map(|row| row.first_mut()) {
            *name = shortened(name, room);
        }
    }
}

/// The end of a name, which is what differs between names of one maker.
fn shortened(name: &str, chars: usize) -> String {
    match name.chars().count().checked_sub(chars) {
        None | Some(0) => name.to_owned(),
        Some(more) => "…".chars().chain(name.chars().skip(more + 1)).collect(),
    }
}

/// The headings of [`io_cells`].
const IO_HEADINGS: [&str; 4] = ["READ/s", "WRITE/s", "READ B/s", "WRITE B/s"];

fn io_cells(io: &IoRates) -> [String; 4] {
    let bytes = |rate: f64| format_human(rate.max(0.0) as u64);
    [
        format!("{:.0}", io.reads),
        format!("{:.0}", io.writes),
        bytes(io.read_bytes),
        bytes(io.written_bytes),
    ]
}

/// The headings of [`latency_cells`].
const LATENCY_HEADINGS: [&str; 4] = ["READ p50", "READ p99", "WRITE p50", "WRITE p99"];

/// How long reads and writes took; nothing where there were none.
fn latency_cells(latency: &Latencies) -> [String; 4] {
    let cell = |operation, permille| {
        let of_operation = latency.0.get(&operation);
        of_operation.map_or_else(String::new, |it| format_latency(it.permille_ns(permille)))
    };
    [
        cell(Operation::Read, 500),
        cell(Operation::Read, 990),
        cell(Operation::Write, 500),
        cell(Operation::Write, 990),
    ]
}

fn parts(rates: &Rates) -> [Part; PARTS] {
    let with_io = |headings: &[&'static str]| [headings, &IO_HEADINGS].concat();
    let volumes = rates.volumes.iter().map(|volume| {
        let own = [
            format_human(volume.size_bytes),
            format_human(volume.logical_bytes),
        ];
        [
            vec![volume.name.clone()],
            own.to_vec(),
            io_cells(&volume.io).to_vec(),
            latency_cells(&volume.latency).to_vec(),
        ]
        .concat()
    });
    let hosts = rates.hosts.iter().map(|host| {
        let own = [
            host.hostnqn.clone(),
            host.address.clone(),
            host.transport.clone(),
            host.queues.to_string(),
        ];
        [own.to_vec(), io_cells(&host.io).to_vec()].concat()
    });
    let reactors = rates.reactors.iter().map(|reactor| {
        vec![
            reactor.name.clone(),
            reactor.queues.to_string(),
            format!("{:.0}", reactor.commands),
            format_human(reactor.buffer_used_bytes),
            format_human(reactor.buffer_bytes),
            format!("{:.0}", reactor.buffer_waits),
        ]
    });
    [
        Part {
            headings: [
                with_io(&["VOLUME", "SIZE", "LOGICAL"]),
                LATENCY_HEADINGS.to_vec(),
            ]
            .concat(),
            rows: volumes.collect(),
            texts: 1,
            // The medians go first, then the sizes.
            spare: vec![1, 2, 7, 9],
        },
        Part {
            headings: with_io(&["HOST", "ADDRESS", "TRANSPORT", "QUEUES"]),
            rows: hosts.collect(),
            texts: 3,
            spare: vec![2, 3],
        },
        Part {
            headings: vec![
                "REACTOR",
                "QUEUES",
                "COMMANDS/s",
                "BUFFERS",
                "OF",
                "WAITS/s",
            ],
            rows: reactors.collect(),
            texts: 1,
            spare: Vec::new(),
        },
    ]
}

fn summary(rates: &Rates) -> [String; 2] {
    let pool = &rates.pool;
    let percent = u128::from(pool.used_bytes) * 100 / u128::from(pool.capacity_bytes.max(1));
    let io = io_cells(&rates.total);
    [
        format!(
            "onefold {}  up {}  health: {}  pool {percent} % of {}  dedup {:.2}",
            rates.version,
            format_duration(rates.uptime_seconds),
            rates.state,
            format_human(pool.capacity_bytes),
            pool.dedup_ratio,
        ),
        format!(
            "read {}/s, {}/s  write {}/s, {}/s",
            io[0], io[2], io[1], io[3]
        ),
    ]
}

/// The whole screen, from its first place on: `(columns, lines)` is its size. What has no room is cut at the right, and of each
/// table at the bottom.
pub(super) fn screen(rates: &Rates, (columns, lines): (usize, usize)) -> String {
    let summary = summary(rates);
    let mut parts = parts(rates);
    // Each table has a blank line, headings, and as many rows as its share of the room.
    let mut room = lines.saturating_sub(summary.len());
    for (index, part) in parts.iter_mut().enumerate() {
        let share = room / (PARTS - index);
        part.rows.truncate(share.saturating_sub(2));
        room = room.saturating_sub(2 + part.rows.len());
        part.fit(columns);
    }
    let text = compose(&summary, &parts);
    let shown: Vec<String> = text
        .lines()
        .take(lines)
        .map(|line| {
            line.chars()
                .filter(|char| !char.is_control())
                .take(columns)
                .collect()
        })
        .collect();
    // Each line is erased behind its end, and all below the last one: nothing flickers.
    format!(
        "{HOME}{}{ERASE_BELOW}",
        shown.join(&format!("{ERASE_REST}\r\n")) + ERASE_REST
    )
}

/// The same for scripts and pipes.
pub(super) fn text(rates: &Rates) -> String {
    compose(&summary(rates), &parts(rates))
}

fn compose(summary: &[String], parts: &[Part]) -> String {
    let mut text: String = summary.iter().map(|line| format!("{line}\n")).collect();
    for part in parts {
        let align = |column| match column < part.texts {
            true => Align::Left,
            false => Align::Right,
        };
        let align: Vec<Align> = (0..part.headings.len()).map(align).collect();
        text.push('\n');
        text += &table(&part.headings, &part.rows, &align);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::samples;
    use super::*;

    /// The lines of a screen of that size.
    fn drawn(columns: usize, lines: usize) -> Vec<String> {
        let (before, now) = samples();
        let rates = Rates::between(&before, &now, 10);
        let text = screen(&rates, (columns, lines));
        let text = text
            .strip_prefix(HOME)
            .expect("it begins at the first place");
        let text = text
            .strip_suffix(ERASE_BELOW)
            .expect("it ends with nothing below");
        let line = |line: &str| {
            line.strip_suffix(ERASE_REST)
                .expect("nothing is left behind it")
                .to_owned()
        };
        text.split("\r\n").map(line).collect()
    }

    #[test]
    fn the_screen_shows_the_busiest_volume_host_and_reactor() {
        let lines = drawn(160, 30);
        let line = |start: &str| {
            let found = lines.iter().find(|line| line.starts_with(start));
            found.unwrap_or_else(|| panic!("{start}: {lines:#?}"))
        };
        assert!(
            lines[0].contains("up 1h 0m") && lines[0].contains("health: ok"),
            "{}",
            lines[0]
        );
        for word in ["1500", "6.00 MiB", "64.0 GiB", "12.0 MiB", "1835 us"] {
            assert!(line("vol0").contains(word), "{word}: {}", line("vol0"));
        }
        assert!(line("nqn.2014-08").contains("192.0.2.7"));
        assert!(line("onefold-data0").contains("1500"));
        let at = |start: &str| lines.iter().position(|line| line.starts_with(start));
        assert!(at("vol0") < at("idle"), "{lines:#?}");
    }

    #[test]
    fn a_usual_terminal_shows_all_rates_and_the_ends_of_long_names() {
        let lines = drawn(80, 24);
        let host = lines.iter().find(|line| line.contains("192.0.2.7"));
        let host = host.unwrap_or_else(|| panic!("no host: {lines:#?}"));
        assert!(
            host.starts_with('…') && host.contains("nvmexpress:uuid:1 "),
            "{host}"
        );
        assert!(host.contains("1500") && host.contains("6.00 MiB"), "{host}");
        let volume = lines.iter().find(|line| line.starts_with("vol0"));
        let volume = volume.unwrap_or_else(|| panic!("no volume: {lines:#?}"));
        assert!(
            volume.contains("6.00 MiB") && volume.contains("1835 us"),
            "{volume}"
        );
    }

    #[test]
    fn nothing_is_drawn_outside_of_a_terminal_however_small_it_is() {
        for (columns, lines) in [(0, 0), (1, 1), (20, 3), (40, 8), (80, 25), (200, 2)] {
            let drawn = drawn(columns, lines);
            assert!(drawn.len() <= lines.max(1), "{lines}: {drawn:#?}");
            assert!(
                drawn.iter().all(|line| line.chars().count() <= columns),
                "{columns}: {drawn:#?}"
            );
        }
        let small = drawn(80, 12);
        for start in ["VOLUME", "vol0", "HOST", "…", "REACTOR", "onefold-data0"] {
            assert!(
                small.iter().any(|line| line.starts_with(start)),
                "{start}: {small:#?}"
            );
        }
    }

    #[test]
    fn scripts_get_the_same_as_text_without_blanks_at_line_ends() {
        let (before, now) = samples();
        let text = text(&Rates::between(&before, &now, 10));
        assert!(
            text.contains("VOLUME") && text.contains("REACTOR") && text.contains("1500"),
            "{text}"
        );
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }
}
