//! Tables for people.

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Text.
    Left,
    /// Figures.
    Right,
}

/// Aligns rows under their headings, two spaces between columns, no blanks at line ends.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>], align: &[Align]) -> String {
    let width_of = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain([headings[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width_of).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.enumerate().take(widths.len()) {
            let gap = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            if column > 0 {
                line += "  ";
            }
            match align.get(column) {
                Some(Align::Right) => line = line + &gap + cell,
                _ => line = line + cell + &gap,
            }
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    };
    let mut text = line(&mut headings.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// A switch, in a table.
pub(super) const fn on_or_off(switch: bool) -> &'static str {
    if switch { "on" } else { "off" }
}
