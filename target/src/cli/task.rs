//! `onefold task ...`: what a daemon works at for a while.

use std::process::ExitCode;

use api::client::Client;
use api::tasks::TaskView;
use clap::Subcommand;

use super::args::PoolArg;
use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print, print_json};

/// `onefold task ...`
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List the long tasks that run, and those that ended last
    #[command(after_help = "Example:\n  onefold task list")]
    List {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one task, and what came of it
    #[command(after_help = "Example:\n  onefold task show 3")]
    Show {
        /// The task's number
        id: u64,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell a task to stop; what it found so far may be lost
    #[command(
        after_help = "Example:\n  onefold task cancel 3\n\nA deletion cannot be cancelled: the volume is gone already."
    )]
    Cancel {
        /// The task's number
        id: u64,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(command: TaskCommand) -> Outcome {
    match command {
        TaskCommand::List { pool, json } => {
            let tasks = converse(Client::new(&pool.pool).tasks())?;
            match json {
                true => print_json(&tasks)?,
                false => print(&listed(&tasks)),
            }
        }
        TaskCommand::Show { id, pool, json } => {
            let task = converse(Client::new(&pool.pool).task(id))?;
            match json {
                true => print_json(&task)?,
                false => print(&shown(&task)),
            }
        }
        TaskCommand::Cancel { id, pool, json } => {
            let task = converse(Client::new(&pool.pool).cancel_task(id))?;
            match json {
                true => print_json(&task)?,
                false => print(&format!("task {id} ({}) is told to stop\n", task.kind)),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn listed(tasks: &[TaskView]) -> String {
    let rows = tasks.iter().map(|task| {
        vec![
            task.id.to_string(),
            task.kind.to_string(),
            task.object.clone().unwrap_or_else(|| "-".to_owned()),
            task.state.to_string(),
            percent(task),
            task.began.clone(),
            task.ended.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let (left, right) = (Align::Left, Align::Right);
    table(
        &["ID", "TASK", "VOLUME", "STATE", "DONE", "BEGAN", "ENDED"],
        &rows,
        &[right, left, left, left, right, left, left],
    )
}

fn percent(task: &TaskView) -> String {
    task.percent
        .map_or_else(|| "-".to_owned(), |percent| format!("{percent} %"))
}

fn shown(task: &TaskView) -> String {
    let mut text = format!(
        "task {}: {} {}",
        task.id,
        task.kind,
        task.object.as_deref().unwrap_or_default()
    );
    text = text.trim_end().to_owned()
        + &format!(
            "\nstate: {}, {} done\nbegan: {}\n",
            task.state,
            percent(task),
            task.began
        );
    if let Some(ended) = &task.ended {
        text += &format!("ended: {ended}\n");
    }
    if let Some(error) = &task.error {
        text += &format!("error: {error}\n");
    }
    if let Some(result) = &task.result {
        // It is a JSON value already, so writing it cannot fail.
        text += &format!(
            "result: {}\n",
            serde_json::to_string_pretty(result).unwrap_or_default()
        );
    }
    text
}
