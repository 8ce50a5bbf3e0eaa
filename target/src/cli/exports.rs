//! `onefold export ...`: volumes that are reached by something else than NVMe.

use api::client::Client;
use api::exports::{CreateExport, ExportView};
use clap::{Args, Subcommand};
use subsystem::catalog::ExportKind;
use subsystem::errors::Failure;

use super::run::converse;
use super::subsystem::{Answer, show};
use super::table::{Align, table};
use super::{Outcome, ask};

/// `onefold export ...`
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// Make a volume reachable, now and after every start
    #[command(
        after_help = "Examples:\n  onefold export create vm1 --vhost /run/onefold/vm1.sock\n  \
                      onefold export create vm1@monday --nbd unix:/run/onefold/vm1.nbd\n  \
                      onefold export create vm1 --nbd tcp://10.0.0.1:10809 --read-only\n\n\
                      Who uses it (QEMU, for example) must be able to write to the socket, whose owner is the daemon's \
                      user. NBD by TCP has neither encryption nor passwords: whoever reaches the port can use the volume."
    )]
    Create {
        /// The volume's name, or a snapshot's
        #[arg(value_name = "NAME")]
        volume: String,
        /// How to reach the volume.
        #[command(flatten)]
        place: ExportPlace,
        /// Take no writes
        #[arg(long)]
        read_only: bool,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// End an export: who uses it loses the volume
    #[command(after_help = "Example:\n  onefold export delete /run/onefold/vm1.sock")]
    Delete {
        /// Its volume's name if there is one of it, its address, or its number as `export list` shows it
        #[arg(value_name = "NAME|ADDRESS|ID")]
        export: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
    /// List the exports
    #[command(after_help = "Example:\n  onefold export list")]
    List {
        /// The daemon to ask, and how to print its answer.
        #[command(flatten)]
        answer: Answer,
    },
}

/// How a volume is reached, and where: one of these.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ExportPlace {
    /// As a virtual machine's disk (vhost-user-blk), by a socket at this absolute path
    #[arg(long, value_name = "PATH")]
    pub vhost: Option<String>,
    /// As a network block device: by a socket (unix:PATH) or by TCP (tcp://ADDRESS:PORT)
    #[arg(long, value_name = "PLACE")]
    pub nbd: Option<String>,
}

impl ExportPlace {
    fn into_parts(self) -> Option<(ExportKind, String)> {
        let vhost = self.vhost.map(|path| (ExportKind::Vhost, path));
        vhost.or(self.nbd.map(|place| (ExportKind::Nbd, place)))
    }
}

pub(super) fn run(command: ExportCommand) -> Outcome {
    match command {
        ExportCommand::Create {
            volume,
            place,
            read_only,
            answer,
        } => {
            let place = place.into_parts();
            let (kind, address) =
                place.ok_or_else(|| Failure::invalid("name --vhost PATH or --nbd PLACE"))?;
            let request = CreateExport {
                volume,
                kind,
                address,
                read_only,
            };
            let client = Client::new(&answer.pool.pool);
            let view = converse(client.create_export(&request))?;
            show(&view, answer.json, |view| line("export", view))
        }
        ExportCommand::Delete {
            export,
            yes,
            answer,
        } => {
            let client = Client::new(&answer.pool.pool);
            let views = converse(client.exports())?;
            let known = find(&views, &export)?;
            if known.connections > 0 {
                let act = format!("End the export at '{}', which is in use", known.address);
                ask::agree(yes, &[], &act, "'yes'", "yes")?;
            }
            let view = converse(client.delete_export(known.id))?;
            show(&view, answer.json, |view| line("deleted export", view))
        }
        ExportCommand::List { answer } => {
            let views = converse(Client::new(&answer.pool.pool).exports())?;
            show(&views, answer.json, |views| export_table(views))
        }
    }
}

fn line(done: &str, view: &ExportView) -> String {
    let read_only = if view.read_only { ", read-only" } else { "" };
    format!(
        "{done} {}: {} by {} at {}{read_only}\n",
        view.id, view.volume, view.kind, view.address
    )
}

/// The export that is meant: by its address, its volume, or its number.
fn find<'a>(views: &'a [ExportView], text: &str) -> Result<&'a ExportView, Failure> {
    if let Some(view) = views.iter().find(|view| view.address == text) {
        return Ok(view);
    }
    let of_volume: Vec<_> = views.iter().filter(|view| view.volume == text).collect();
    match of_volume[..] {
        [view] => return Ok(view),
        [_, _, ..] => {
            return Err(Failure::invalid(format!(
                "'{text}' has several exports: name one by its address, as `onefold export list` shows it"
            )));
        }
        [] => {}
    }
    let id = text.parse().ok();
    let found = views.iter().find(|view| Some(view.id) == id);
    found.ok_or_else(|| {
        let text =
            format!("there is no export '{text}': `onefold export list` shows those there are");
        Failure::new(dedup::ErrorKind::NotFound, text)
    })
}

fn export_table(views: &[ExportView]) -> String {
    if views.is_empty() {
        return "There is no export.\n".to_owned();
    }
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            let access = if view.read_only {
                "read-only"
            } else {
                "read-write"
            };
            let state = match (view.served, view.connections) {
                (false, _) => "not served".to_owned(),
                (true, 0) => "free".to_owned(),
                (true, _) => "in use".to_owned(),
            };
            vec![
                view.id.to_string(),
                view.volume.clone(),
                view.kind.to_string(),
                view.address.clone(),
                access.to_owned(),
                state,
            ]
        })
        .collect();
    let mut align = [Align::Left; 6];
    align[0] = Align::Right;
    let heads = ["ID", "VOLUME", "KIND", "ADDRESS", "ACCESS", "STATE"];
    table(&heads, &rows, &align)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_is_found_by_address_volume_or_number() {
        let view = |id, volume: &str| ExportView {
            id,
            volume: volume.to_owned(),
            kind: ExportKind::Vhost,
            address: format!("/run/{id}"),
            read_only: false,
            served: true,
            connections: 0,
        };
        let views = [view(1, "a"), view(2, "b"), view(3, "b"), view(4, "1")];
        let id = |text| find(&views, text).map(|view| view.id).ok();
        assert_eq!(id("a"), Some(1));
        assert_eq!(id("b"), None);
        assert_eq!(id("/run/3"), Some(3));
        assert_eq!(id("2"), Some(2));
        assert_eq!(id("1"), Some(4));
        assert_eq!(id("5"), None);
    }
}
