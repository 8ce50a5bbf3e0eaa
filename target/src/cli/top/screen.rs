//! The tables on the terminal, and the keys that move in them.
//!
//! Guarantees: a selected row stays selected wherever it moves; what has no room is scrolled to; nothing is drawn outside
//! of the terminal, however small it is.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::rates::Rates;
use super::view::{PARTS, Part, Sort, parts, summary};

/// The keys.
const HELP: &str = "Tab table  ↑ ↓ PgUp PgDn Home End row  s < > sort by  r reverse  q quit";

/// Lines of a table beside its rows: a blank one and the headings.
const FRAME_LINES: usize = 2;

/// Fewer lines have no room for the help.
const LINES_WITH_HELP_MIN: usize = 6;

/// What a key did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressed {
    /// It is to end.
    Quit,
    /// It may look different now.
    Changed,
    /// No key of this screen.
    Unknown,
}

/// What is looked at in the tables.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// The table that keys are for.
    focus: usize,
    lists: [List; PARTS],
}

/// What is looked at in a table.
#[derive(Debug, Default)]
struct List {
    /// `None`: as it comes, the busiest first.
    sort: Option<Sort>,
    selected: Option<Selected>,
    /// The first row that is seen.
    top: usize,
    /// Rows that have room.
    page: usize,
    /// The rows, as they were drawn.
    ids: Vec<String>,
    /// The columns that were drawn.
    columns: Vec<usize>,
}

#[derive(Debug)]
struct Selected {
    id: String,
    /// Where it was seen last.
    at: usize,
}

impl List {
    fn select(&mut self, at: usize) {
        let at = at.min(self.ids.len().saturating_sub(1));
        self.selected = self.ids.get(at).map(|id| Selected { id: id.clone(), at });
    }

    /// Selects the row so many rows below, or above; without a selection the first row that is seen.
    fn step(&mut self, rows: isize) {
        let at = match &self.selected {
            Some(selected) => selected.at.saturating_add_signed(rows),
            None => self.top,
        };
        self.select(at);
    }

    /// Takes the next column to sort by, of those that are seen; behind the last one none, which is the busiest first.
    fn sort_by(&mut self, forward: bool) {
        let at = self
            .sort
            .and_then(|sort| self.columns.iter().position(|it| *it == sort.column));
        let at = match (at, forward) {
            (None, true) => Some(0),
            (None, false) => self.columns.len().checked_sub(1),
            (Some(at), true) => Some(at + 1),
            (Some(at), false) => at.checked_sub(1),
        };
        let column = at.and_then(|at| self.columns.get(at).copied());
        self.sort = column.map(|column| Sort {
            column,
            is_reversed: false,
        });
    }

    /// Finds the selected row again, and what is seen around it.
    fn follow(&mut self, part: &Part, page: usize) {
        self.page = page;
        self.ids = part.rows.iter().map(|row| row.id.clone()).collect();
        if let Some(selected) = self.selected.take() {
            let at = self.ids.iter().position(|id| *id == selected.id);
            // One that is gone leaves the selection where it was.
            self.select(at.unwrap_or(selected.at));
        }
        match &self.selected {
            None => self.top = 0,
            Some(selected) => {
                let first = (selected.at + 1).saturating_sub(page.max(1));
                self.top = self.top.clamp(first, selected.at);
            }
        }
        self.top = self.top.min(self.ids.len().saturating_sub(page));
    }
}

impl Screen {
    /// Somebody pressed a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Pressed {
        if key.kind == KeyEventKind::Release {
            return Pressed::Unknown;
        }
        let list = &mut self.lists[self.focus];
        // A page keeps a row of the one before.
        let page = isize::try_from(list.page.max(2) - 1).unwrap_or(isize::MAX);
        match key.code {
            KeyCode::Char('q') => return Pressed::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Pressed::Quit;
            }
            KeyCode::Tab => self.focus = (self.focus + 1) % PARTS,
            KeyCode::BackTab => self.focus = (self.focus + PARTS - 1) % PARTS,
            KeyCode::Down | KeyCode::Char('j') => list.step(1),
            KeyCode::Up | KeyCode::Char('k') => list.step(-1),
            KeyCode::PageDown => list.step(page),
            KeyCode::PageUp => list.step(-page),
            KeyCode::Home => list.select(0),
            KeyCode::End => list.select(usize::MAX),
            KeyCode::Esc => list.selected = None,
            KeyCode::Char('s' | '>') | KeyCode::Right => list.sort_by(true),
            KeyCode::Char('<') | KeyCode::Left => list.sort_by(false),
            KeyCode::Char('r') => match &mut list.sort {
                Some(sort) => sort.is_reversed = !sort.is_reversed,
                None => return Pressed::Unknown,
            },
            _ => return Pressed::Unknown,
        }
        Pressed::Changed
    }

    /// Draws all of it.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, rates: &Rates) {
        let area = frame.area();
        let buffer = frame.buffer_mut();
        let mut lines = usize::from(area.height);
        if lines >= LINES_WITH_HELP_MIN {
            lines -= 1;
            put(buffer, area, lines, HELP, Modifier::DIM);
        }
        let area = Rect {
            height: u16::try_from(lines).unwrap_or(area.height),
            ..area
        };
        let summary = summary(rates);
        for (line, text) in summary.iter().enumerate() {
            put(buffer, area, line, text, Modifier::empty());
        }
        let mut parts = parts(rates);
        let needs = parts.each_ref().map(|part| FRAME_LINES + part.rows.len());
        let room = lines.saturating_sub(summary.len());
        let mut line = summary.len();
        let shares = shares(needs, room, self.focus);
        for (index, part) in parts.iter_mut().enumerate() {
            let list = &mut self.lists[index];
            if let Some(sort) = list.sort {
                part.sort(sort);
            }
            list.follow(part, shares[index].saturating_sub(FRAME_LINES));
            let (texts, columns) = part.lines(area.width.into(), list.sort);
            list.columns = columns;
            let mut texts = texts.iter();
            let heading = match index == self.focus {
                true => Modifier::BOLD | Modifier::UNDERLINED,
                false => Modifier::BOLD,
            };
            if let Some(text) = texts.next()
                && shares[index] >= FRAME_LINES
            {
                put(buffer, area, line + 1, text, heading);
            }
            let selected = list.selected.as_ref().map(|selected| selected.at);
            for (at, text) in texts.enumerate().skip(list.top).take(list.page) {
                let is_selected = selected == Some(at);
                let style = match (is_selected, index == self.focus) {
                    (true, true) => Modifier::REVERSED,
                    (true, false) => Modifier::BOLD,
                    (false, _) => Modifier::empty(),
                };
                put(
                    buffer,
                    area,
                    line + FRAME_LINES + at - list.top,
                    text,
                    style,
                );
            }
            line += shares[index];
        }
    }
}

/// The lines of each table: all that it needs, or a third; the one that is looked at also has what the others leave.
fn shares(needs: [usize; PARTS], room: usize, focus: usize) -> [usize; PARTS] {
    let mut shares = needs.map(|need| need.min(room / PARTS));
    for index in [focus].into_iter().chain(0..PARTS) {
        let left = room - shares.iter().sum::<usize>();
        shares[index] = needs[index].min(shares[index] + left);
    }
    shares
}

/// Puts a text on a line of the area, as far as there is room; the whole line gets the style.
fn put(buffer: &mut Buffer, area: Rect, line: usize, text: &str, style: Modifier) {
    let Ok(line) = u16::try_from(line) else {
        return;
    };
    if line >= area.height || area.width == 0 {
        return;
    }
    let (y, style) = (area.y + line, Style::new().add_modifier(style));
    buffer.set_stringn(area.x, y, text, area.width.into(), style);
    let whole = Rect {
        y,
        height: 1,
        ..area
    };
    buffer.set_style(whole, style);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::tests::samples;
    use super::*;

    /// A terminal of that size, with somebody at its keys.
    struct TestScreen {
        terminal: Terminal<TestBackend>,
        screen: Screen,
        rates: Rates,
    }

    impl TestScreen {
        fn new(columns: u16, lines: u16, rates: Rates) -> Self {
            let terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a terminal");
            let mut screen = Self {
                terminal,
                screen: Screen::default(),
                rates,
            };
            screen.draw();
            screen
        }

        fn draw(&mut self) {
            let (screen, rates) = (&mut self.screen, &self.rates);
            let drawn = self.terminal.draw(|frame| screen.draw(frame, rates));
            drawn.expect("drawn");
        }

        /// Types keys, and looks.
        fn types(&mut self, keys: &[KeyCode]) {
            for key in keys {
                self.screen.press(KeyEvent::from(*key));
                self.draw();
            }
        }

        fn lines(&self) -> Vec<String> {
            let buffer = self.terminal.backend().buffer();
            let line = |y| {
                let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
                cells.collect::<String>().trim_end().to_owned()
            };
            (0..buffer.area.height).map(line).collect()
        }

        /// The first words of the rows of the table with that heading.
        fn names(&self, heading: &str) -> Vec<String> {
            let lines = self.lines();
            let rows = lines.iter().skip_while(|line| !line.starts_with(heading));
            let rows = rows.skip(1);
            let rows = rows.take_while(|line| !line.is_empty() && *line != HELP);
            let first = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
            rows.map(first).collect()
        }

        /// The first words of the lines that are marked as selected.
        fn selected(&self) -> Vec<String> {
            let buffer = self.terminal.backend().buffer();
            let is_marked = |y: &usize| {
                let cell = &buffer[(0, *y as u16)];
                cell.modifier.contains(Modifier::REVERSED)
            };
            let lines = self.lines();
            let marked = (0..lines.len()).filter(is_marked);
            let first = |y: usize| lines[y].split(' ').next().unwrap_or_default().to_owned();
            marked.map(first).collect()
        }
    }

    fn rates() -> Rates {
        let (before, now) = samples();
        Rates::between(&before, &now, usize::MAX)
    }

    /// So many volumes, v0 the busiest and the smallest one.
    fn many(volumes: u32) -> Rates {
        let mut rates = rates();
        let some = rates.volumes[0].clone();
        let volume = |at: u32| {
            let mut volume = some.clone();
            (volume.uuid, volume.name) = (format!("uuid-{at}"), format!("v{at}"));
            volume.size_bytes = u64::from(at + 1) << 30;
            volume.io.reads = f64::from(volumes - at);
            volume
        };
        rates.volumes = (0..volumes).map(volume).collect();
        rates
    }

    #[test]
    fn the_screen_shows_the_busiest_volume_host_and_reactor() {
        let screen = TestScreen::new(160, 30, rates());
        let lines = screen.lines();
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
        assert_eq!(screen.names("VOLUME"), ["vol0", "idle"]);
        assert_eq!(lines[29], HELP);
    }

    #[test]
    fn a_usual_terminal_shows_all_rates_and_the_ends_of_long_names() {
        let lines = TestScreen::new(80, 24, rates()).lines();
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
        assert!(lines[23].starts_with("Tab") && lines[23].ends_with("q quit"));
    }

    #[test]
    fn any_terminal_is_drawn_on_however_small_it_is_and_whatever_is_typed() {
        use KeyCode::{BackTab, Char, Down, End, Esc, Home, Left, PageDown, PageUp, Right, Tab};
        let keys = [
            End,
            Char('s'),
            Char('r'),
            PageUp,
            Tab,
            Down,
            PageDown,
            Right,
            Left,
            Home,
            BackTab,
            Esc,
            Char('x'),
        ];
        for (columns, lines) in [(1, 1), (20, 3), (40, 8), (80, 25), (200, 2), (7, 100)] {
            TestScreen::new(columns, lines, many(50)).types(&keys);
            let mut empty = rates();
            (empty.volumes, empty.hosts) = (Vec::new(), Vec::new());
            TestScreen::new(columns, lines, empty).types(&keys);
        }
        let small = TestScreen::new(80, 12, rates()).lines();
        for start in ["VOLUME", "vol0", "HOST", "…", "REACTOR", "onefold-data0"] {
            assert!(
                small.iter().any(|line| line.starts_with(start)),
                "{start}: {small:#?}"
            );
        }
    }

    #[test]
    fn every_column_can_be_sorted_by_and_turned_round() {
        use KeyCode::Char;
        let mut screen = TestScreen::new(160, 40, many(12));
        let by_load: Vec<String> = (0..12).map(|at| format!("v{at}")).collect();
        let turned: Vec<String> = by_load.iter().rev().cloned().collect();
        assert_eq!(screen.names("VOLUME"), by_load);
        // By name, then by size: figures begin with the largest, which is 12 GiB and not 9.
        screen.types(&[Char('s')]);
        assert_eq!(screen.names("VOLUME")[..4], ["v0", "v1", "v10", "v11"]);
        screen.types(&[Char('>')]);
        let heading = screen.lines()[3].clone();
        assert!(heading.contains("SIZE▼"), "{heading}");
        assert_eq!(screen.names("VOLUME"), turned);
        screen.types(&[Char('r')]);
        assert!(
            screen.lines()[3].contains("SIZE▲"),
            "{:?}",
            screen.lines()[3]
        );
        assert_eq!(screen.names("VOLUME"), by_load);
        screen.types(&[Char('<'), Char('r')]);
        assert!(screen.lines()[3].starts_with("VOLUME▼"));
        assert_eq!(screen.names("VOLUME")[..2], ["v9", "v8"]);
        // Before the first column is the order of their load, and behind the last one.
        screen.types(&[Char('<')]);
        assert_eq!(screen.names("VOLUME"), by_load);
        screen.types(&[Char('s'); 11]);
        assert!(
            screen.lines()[3].ends_with("WRITE p99▼"),
            "{:?}",
            screen.lines()
        );
        screen.types(&[Char('s')]);
        assert!(!screen.lines()[3].contains('▼'), "{:?}", screen.lines());
        // Other tables have an order of their own.
        screen.types(&[KeyCode::Tab, Char('s')]);
        assert!(!screen.lines()[3].contains('▲'));
        assert!(screen.lines().iter().any(|line| line.starts_with("HOST▲")));
    }

    #[test]
    fn a_narrow_terminal_keeps_the_column_that_it_is_sorted_by() {
        let mut screen = TestScreen::new(160, 24, many(3));
        screen.types(&[KeyCode::Char('s'), KeyCode::Char('s')]);
        screen.terminal.backend_mut().resize(70, 24);
        screen.draw();
        let heading = screen.lines()[3].clone();
        assert!(
            heading.contains("SIZE▼") && !heading.contains("LOGICAL"),
            "{heading}"
        );
    }

    #[test]
    fn rows_without_room_are_scrolled_to() {
        use KeyCode::{Down, End, Home, PageDown, PageUp, Up};
        let mut screen = TestScreen::new(120, 24, many(100));
        let page = screen.names("VOLUME").len();
        assert!(page > 7, "what other tables leave is for volumes: {page}");
        assert_eq!(screen.selected(), Vec::<String>::new());
        screen.types(&[Down]);
        assert_eq!(screen.selected(), ["v0"]);
        screen.types(&[Down, Down, Up]);
        assert_eq!(screen.selected(), ["v1"]);
        screen.types(&[PageDown]);
        assert_eq!(screen.selected(), [format!("v{page}")]);
        let names = screen.names("VOLUME");
        assert_eq!(
            (names.len(), &*names[0]),
            (page, "v1"),
            "no further than needed"
        );
        screen.types(&[End]);
        assert_eq!(screen.selected(), ["v99"]);
        assert_eq!(
            screen.names("VOLUME").last().map(String::as_str),
            Some("v99")
        );
        screen.types(&[Down]);
        assert_eq!(screen.selected(), ["v99"]);
        screen.types(&[PageUp, Home]);
        assert_eq!(screen.selected(), ["v0"]);
        assert_eq!(screen.names("VOLUME")[0], "v0");
        // The table of reactors is not moved.
        assert_eq!(screen.names("REACTOR").len(), screen.rates.reactors.len());
    }

    #[test]
    fn the_selection_stays_on_its_row_when_rates_change() {
        let mut screen = TestScreen::new(120, 24, many(100));
        screen.types(&[KeyCode::Down, KeyCode::Down, KeyCode::Down]);
        assert_eq!(screen.selected(), ["v2"]);
        // It is the idlest one now.
        let volume = screen.rates.volumes.remove(2);
        screen.rates.volumes.push(volume);
        screen.draw();
        assert_eq!(screen.selected(), ["v2"]);
        assert_eq!(
            screen.names("VOLUME").last().map(String::as_str),
            Some("v2")
        );
        // Renamed, it is the same; and gone, its neighbour is selected.
        screen.rates.volumes[99].name = "new".to_owned();
        screen.draw();
        assert_eq!(screen.selected(), ["new"]);
        screen.rates.volumes.truncate(99);
        screen.draw();
        assert_eq!(screen.selected(), ["v99"]);
        screen.types(&[KeyCode::Esc]);
        assert_eq!(screen.selected(), Vec::<String>::new());
        assert_eq!(screen.names("VOLUME")[0], "v0");
    }

    #[test]
    fn two_paths_of_a_host_are_two_rows() {
        let mut rates = rates();
        let twin = rates.hosts[0].clone();
        rates.hosts.insert(1, twin);
        let mut screen = TestScreen::new(120, 30, rates);
        screen.types(&[KeyCode::Tab, KeyCode::End]);
        let marked = |screen: &TestScreen| {
            let buffer = screen.terminal.backend().buffer();
            let is_marked = |y: &u16| buffer[(0, *y)].modifier.contains(Modifier::REVERSED);
            (0..30).filter(is_marked).collect::<Vec<_>>()
        };
        let last = marked(&screen);
        assert_eq!(last.len(), 1);
        screen.draw();
        assert_eq!(marked(&screen), last);
    }

    #[test]
    fn q_and_control_c_end_it_and_nothing_else_does() {
        let mut screen = Screen::default();
        let mut press = |key: KeyEvent| screen.press(key);
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(press(KeyCode::Char('q').into()), Pressed::Quit);
        assert_eq!(press(control('c')), Pressed::Quit);
        assert_eq!(press(KeyCode::Char('c').into()), Pressed::Unknown);
        assert_eq!(press(KeyCode::Esc.into()), Pressed::Changed);
        let mut released = KeyEvent::from(KeyCode::Char('q'));
        released.kind = KeyEventKind::Release;
        assert_eq!(press(released), Pressed::Unknown);
        // Rates that are looked at once have no time between them.
        let (before, mut now) = samples();
        now.at = before.at + Duration::ZERO;
        TestScreen::new(80, 24, Rates::between(&before, &now, usize::MAX));
    }
}
