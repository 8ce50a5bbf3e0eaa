//! The example: every key with its help and its default, as the command line has them.

use super::keys::{Key, Kind, TABLES, of_table, options};

/// Columns of a comment, with its sign.
const COLUMNS: usize = 100;

/// The example.
pub(crate) fn example() -> String {
    let options = options();
    let mut text = String::from(
        "# The configuration of `onefold serve --config FILE`.\n\
         #\n\
         # Every key has its default here. A key whose default depends on the machine stands behind a #, with a value that\n\
         # it could have. Options on the command line override this file. `onefold config check FILE` explains mistakes.\n\
         # `onefold config reload` and SIGHUP read it again: what a reload does not apply waits for a restart.\n\
         # Sizes are binary: \"4k\", \"256M\", \"1.5T\". Times: \"100us\", \"30s\", \"5m\".\n",
    );
    for (table, what) in TABLES {
        text += &format!("\n# {what}\n[{table}]\n");
        for key in of_table(table) {
            let arg = options.get_arguments().find(|arg| arg.get_id() == key.id());
            if let Some(arg) = arg {
                text += &entry(key, arg);
            }
        }
    }
    text
}

fn entry(key: &Key, arg: &clap::Arg) -> String {
    let mut text = String::from("\n");
    let help = arg.get_long_help().or(arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    for paragraph in help.split("\n\n") {
        text += &comment(paragraph);
    }
    let when = match key.is_live() {
        true => "; a reload applies it",
        false => "",
    };
    text += &format!("# As an option: --{}{when}\n", key.option());
    match (default(key, arg), key.sample) {
        (Some(value), _) => text += &format!("{} = {value}\n", key.name),
        (None, sample) => {
            text += &format!("#{} = {}\n", key.name, sample.unwrap_or_default());
        }
    }
    text
}

/// The default as the file writes it, if it is the same on every machine.
fn default(key: &Key, arg: &clap::Arg) -> Option<String> {
    let values = arg.get_default_values().iter();
    let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
    let value = values.first()?;
    Some(match key.kind {
        Kind::Switch => (value == "on").to_string(),
        Kind::Number => value.to_string(),
        Kind::Numbers => format!("[{}]", value.split(',').collect::<Vec<_>>().join(", ")),
        Kind::Text | Kind::Size | Kind::Time => format!("{value:?}"),
        Kind::Texts => format!("{values:?}"),
    })
}

/// A paragraph as lines of a comment.
fn comment(paragraph: &str) -> String {
    let mut text = String::new();
    let mut line = String::from("#");
    for word in paragraph.split_whitespace() {
        if line.len() + 1 + word.len() > COLUMNS {
            text += &line;
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line += word;
    }
    text + &line + "\n"
}
