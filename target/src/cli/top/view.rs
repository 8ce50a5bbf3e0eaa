//! Rates as tables, and as text.

use std::cmp::Ordering;
use std::collections::HashMap;

use api::status::{Latencies, Operation};

use super::super::table::{Align, table};
use super::rates::{HostRates, IoRates, Rates, ReactorRates, VolumeRates};
use crate::size::format_human;
use crate::time::{format_duration, format_latency};

/// Tables.
pub(super) const PARTS: usize = 3;

/// What a name is shortened to at least.
const NAME_CHARS_MIN: usize = 8;

/// What a name keeps while a table has columns that can be left out.
const NAME_CHARS: usize = 24;

/// A field of a row, and what it is sorted by.
struct Cell {
    text: String,
    /// `None`: by its text.
    figure: Option<f64>,
}

/// A row of a table.
pub(super) struct Row {
    /// What tells it from the other rows, in every look.
    pub(super) id: String,
    cells: Vec<Cell>,
}

/// A table. The first column has names.
pub(super) struct Part {
    headings: &'static [&'static str],
    pub(super) rows: Vec<Row>,
    /// How many columns at the left are text.
    texts: usize,
    /// Columns that are left out where the terminal is narrow, the last one first.
    spare: &'static [usize],
}

/// The column that a table is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    /// Figures begin with the largest, texts with the first of the alphabet; reversed, the other way round.
    pub(super) is_reversed: bool,
}

impl Part {
    /// Sorts the rows; equal ones stay in their order.
    pub(super) fn sort(&mut self, by: Sort) {
        let order = |one: &Row, other: &Row| -> Ordering {
            let (Some(one), Some(other)) = (one.cells.get(by.column), other.cells.get(by.column))
            else {
                return Ordering::Equal;
            };
            match (one.figure, other.figure) {
                (Some(one), Some(other)) => other.total_cmp(&one),
                _ => one.text.cmp(&other.text),
            }
        };
        self.rows.sort_by(|one, other| match by.is_reversed {
            true => order(other, one),
            false => order(one, other),
        });
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.cells.get(column));
        let widths = cells.map(|cell| cell.text.chars().count());
        let heading = self.headings[column].chars().count();
        widths.chain([heading]).max().unwrap_or(0)
    }

    /// The columns that a terminal of that width has room for, and how long names may be in it. The column that it is
    /// sorted by is always one.
    fn fit(&self, width: usize, sort: Option<Sort>) -> (Vec<usize>, usize) {
        let mut columns: Vec<usize> = (0..self.headings.len()).collect();
        let widths: Vec<usize> = columns.iter().map(|column| self.width(*column)).collect();
        let mark = |column: usize| usize::from(sort.is_some_and(|sort| sort.column == column));
        let beside_names = |columns: &[usize]| -> usize {
            let others = columns.iter().filter(|column| **column > 0);
            others
                .map(|column| 2 + widths[*column] + mark(*column))
                .sum()
        };
        let names = widths[0].min(NAME_CHARS) + mark(0);
        for spare in self.spare.iter().rev() {
            if names + beside_names(&columns) > width && mark(*spare) == 0 {
                columns.retain(|column| column != spare);
            }
        }
        let room = width.saturating_sub(beside_names(&columns));
        (columns, room.max(NAME_CHARS_MIN))
    }

    /// As lines of text, and the columns that it has: rates must be seen, names may be shortened.
    pub(super) fn lines(&self, width: usize, sort: Option<Sort>) -> (Vec<String>, Vec<usize>) {
        let (columns, name_chars) = self.fit(width, sort);
        let heading = |column: &usize| {
            let mark = match sort.filter(|sort| sort.column == *column) {
                // Figures fall, texts rise.
                Some(sort) if sort.is_reversed == (*column < self.texts) => "▼",
                Some(_) => "▲",
                None => "",
            };
            format!("{}{mark}", self.headings[*column])
        };
        let headings: Vec<String> = columns.iter().map(heading).collect();
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        let cell = |row: &Row, column: usize| {
            let text = row.cells.get(column).map_or("", |cell| &cell.text);
            match column {
                0 => shortened(text, name_chars),
                _ => text.to_owned(),
            }
        };
        let row = |row: &Row| columns.iter().map(|column| cell(row, *column)).collect();
        let rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
        let align = |column: &usize| match *column < self.texts {
            true => Align::Left,
            false => Align::Right,
        };
        let align: Vec<Align> = columns.iter().map(align).collect();
        let text = table(&headings, &rows, &align);
        (text.lines().map(str::to_owned).collect(), columns)
    }
}

/// The end of a name, which is what differs between names of one maker.
fn shortened(name: &str, chars: usize) -> String {
    match name.chars().count().checked_sub(chars) {
        None | Some(0) => name.to_owned(),
        Some(more) => "…".chars().chain(name.chars().skip(more + 1)).collect(),
    }
}

fn word(text: &str) -> Cell {
    Cell {
        text: text.to_owned(),
        figure: None,
    }
}

fn figure(text: String, figure: f64) -> Cell {
    Cell {
        text,
        figure: Some(figure),
    }
}

fn rate(rate: f64) -> Cell {
    figure(format!("{rate:.0}"), rate)
}

fn bytes(bytes: f64) -> Cell {
    figure(format_human(bytes.max(0.0) as u64), bytes)
}

fn io_cells(io: &IoRates) -> [Cell; 4] {
    [
        rate(io.reads),
        rate(io.writes),
        bytes(io.read_bytes),
        bytes(io.written_bytes),
    ]
}

/// How long reads and writes took; nothing where there were none.
fn latency_cells(latency: &Latencies) -> [Cell; 4] {
    let cell = |operation, permille| {
        let of_operation = latency.0.get(&operation);
        let ns = of_operation.map(|it| it.permille_ns(permille));
        figure(
            ns.map_or_else(String::new, format_latency),
            ns.map_or(-1.0, |ns| ns as f64),
        )
    };
    [
        cell(Operation::Read, 500),
        cell(Operation::Read, 990),
        cell(Operation::Write, 500),
        cell(Operation::Write, 990),
    ]
}

/// The volumes, the hosts and the reactors.
pub(super) fn parts(rates: &Rates) -> [Part; PARTS] {
    [
        Part {
            headings: &[
                "VOLUME",
                "SIZE",
                "LOGICAL",
                "READ/s",
                "WRITE/s",
                "READ B/s",
                "WRITE B/s",
                "READ p50",
                "READ p99",
                "WRITE p50",
                "WRITE p99",
            ],
            rows: rates.volumes.iter().map(volume_row).collect(),
            texts: 1,
            // The medians go first, then the sizes.
            spare: &[1, 2, 7, 9],
        },
        Part {
            headings: &[
                "HOST",
                "ADDRESS",
                "TRANSPORT",
                "QUEUES",
                "READ/s",
                "WRITE/s",
                "READ B/s",
                "WRITE B/s",
            ],
            rows: host_rows(&rates.hosts),
            texts: 3,
            spare: &[2, 3],
        },
        Part {
            headings: &[
                "REACTOR",
                "QUEUES",
                "COMMANDS/s",
                "BUSY",
                "BUFFERS",
                "OF",
                "WAITS/s",
            ],
            rows: rates.reactors.iter().map(reactor_row).collect(),
            texts: 1,
            spare: &[],
        },
    ]
}

fn volume_row(volume: &VolumeRates) -> Row {
    let own = [
        word(&volume.name),
        bytes(volume.size_bytes as f64),
        bytes(volume.logical_bytes as f64),
    ];
    let others = io_cells(&volume.io)
        .into_iter()
        .chain(latency_cells(&volume.latency));
    Row {
        id: volume.uuid.clone(),
        cells: own.into_iter().chain(others).collect(),
    }
}

fn host_rows(hosts: &[HostRates]) -> Vec<Row> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut row = |host: &HostRates| {
        let name = [
            &host.hostnqn,
            &host.subsystem,
            &host.address,
            &host.transport,
        ]
        .map(String::as_str)
        .join(" ");
        // Several associations of a host at one address come in the same order in each look.
        let nth = seen.entry(name.clone()).or_default();
        *nth += 1;
        let own = [
            word(&host.hostnqn),
            word(&host.address),
            word(&host.transport),
            figure(host.queues.to_string(), host.queues.into()),
        ];
        Row {
            id: format!("{name} {nth}"),
            cells: own.into_iter().chain(io_cells(&host.io)).collect(),
        }
    };
    hosts.iter().map(&mut row).collect()
}

fn reactor_row(reactor: &ReactorRates) -> Row {
    let cells = [
        word(&reactor.name),
        figure(reactor.queues.to_string(), reactor.queues as f64),
        rate(reactor.commands),
        figure(format!("{:.0} %", 100.0 * reactor.busy), reactor.busy),
        bytes(reactor.buffer_used_bytes as f64),
        bytes(reactor.buffer_bytes as f64),
        rate(reactor.buffer_waits),
    ];
    Row {
        id: reactor.name.clone(),
        cells: cells.into(),
    }
}

/// The pool, and all volumes together.
pub(super) fn summary(rates: &Rates) -> [String; 2] {
    let pool = &rates.pool;
    let percent = u128::from(pool.used_bytes) * 100 / u128::from(pool.capacity_bytes.max(1));
    let io = io_cells(&rates.total).map(|cell| cell.text);
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

/// The same as on the screen, whole, for scripts and pipes.
pub(super) fn text(rates: &Rates) -> String {
    let mut text: String = summary(rates).map(|line| line + "\n").concat();
    for part in parts(rates) {
        let (lines, _) = part.lines(usize::MAX, None);
        text.push('\n');
        text.extend(lines.into_iter().map(|line| line + "\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::samples;
    use super::*;

    #[test]
    fn scripts_get_the_tables_as_text_without_blanks_at_line_ends() {
        let (before, now) = samples();
        let text = text(&Rates::between(&before, &now, 10));
        assert!(
            text.contains("VOLUME") && text.contains("REACTOR") && text.contains("1500"),
            "{text}"
        );
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }
}
