//! `onefold volume ...`: volumes of a running daemon.

use std::process::ExitCode;

use api::client::Client;
use api::volumes::{CreateVolume, ResizeVolume, VolumeView};

use super::args::VolumeCommand;
use super::ask::{self, Attached};
use super::run::converse;
use super::status::nsid_text;
use super::table::{Align, on_or_off, table};
use super::{Outcome, print, print_json};
use crate::size::format_human;

/// `onefold volume ...`
pub(super) fn run(command: VolumeCommand) -> Outcome {
    match command {
        VolumeCommand::Create {
            name,
            size,
            lba,
            dedup,
            compression,
            verify,
            domain,
            subsystem,
            uuid,
            pool,
            json,
        } => {
            let request = CreateVolume {
                name,
                size_bytes: size,
                lba_bytes: lba,
                dedup,
                compression,
                verify,
                domain,
                subsystem,
                uuid,
            };
            let client = Client::new(&pool.pool);
            let view = converse(client.create_volume(&request))?;
            let done = show_volume("created", &view, json)?;
            let open = converse(client.subsystems())?
                .into_iter()
                .find(|subsystem| {
                    let mut shown = subsystem.namespaces.iter();
                    subsystem.allow_any_host && shown.any(|namespace| namespace.volume == view.name)
                });
            ask::tell(open.map(|subsystem| {
                let nqn = subsystem.nqn;
                format!(
                    "Volume '{}' is in subsystem '{nqn}', which admits any host: `onefold subsystem allow {nqn} \
                     HOSTNQN` admits only hosts on its list.",
                    view.name
                )
            }));
            Ok(done)
        }
        VolumeCommand::List { pool, json } => {
            let views = converse(Client::new(&pool.pool).volumes())?;
            if json {
                print_json(&views)?;
            } else {
                print(&volume_table(&views));
            }
            Ok(ExitCode::SUCCESS)
        }
        VolumeCommand::Show { name, pool, json } => {
            let view = converse(Client::new(&pool.pool).volume(&name))?;
            show_volume("", &view, json)
        }
        VolumeCommand::Resize {
            name,
            size,
            shrink,
            pool,
            json,
        } => {
            let request = ResizeVolume {
                size_bytes: size,
                shrink,
            };
            let view = converse(Client::new(&pool.pool).resize_volume(&name, &request))?;
            show_volume("resized", &view, json)
        }
        VolumeCommand::Delete {
            name,
            yes,
            pool,
            json,
        } => {
            let client = Client::new(&pool.pool);
            let known = async { Ok((client.volume(&name).await?, Attached::of(&client).await?)) };
            let (view, attached) = converse(known)?;
            let facts = attached.facts_of_volume(&name);
            let act = format!(
                "Delete volume '{name}' with {} of data, for good",
                format_human(view.logical_bytes)
            );
            ask::agree(yes, &facts, &act, "its name", &name)?;
            let view = converse(client.delete_volume(&name))?;
            ask::tell(facts);
            show_volume("deleted", &view, json)
        }
    }
}

fn show_volume(done: &str, view: &VolumeView, json: bool) -> Outcome {
    if json {
        print_json(view)?;
    } else if done.is_empty() {
        print(&format!(
            "name         {}\nnsid         {}\nuuid         {}\nnguid        {}\nsize         {} ({} bytes)\n\
             lba          {} bytes\nlogical      {} ({} bytes)\ndedup        {}\ncompression  {}\n\
             verify       {}\ndomain       {}\n",
            view.name,
            nsid_text(&view.namespaces),
            view.uuid,
            view.nguid,
            format_human(view.size_bytes),
            view.size_bytes,
            view.lba_bytes,
            format_human(view.logical_bytes),
            view.logical_bytes,
            on_or_off(view.dedup),
            view.compression,
            view.verify,
            domain_name(&view.domain),
        ));
    } else {
        print(&format!(
            "{done} {}: {}, NSID {}, {}-byte blocks\n",
            view.name,
            format_human(view.size_bytes),
            nsid_text(&view.namespaces),
            view.lba_bytes
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The pool's own domain has no name.
const fn domain_name(name: &str) -> &str {
    if name.is_empty() { "-" } else { name }
}

fn volume_table(views: &[VolumeView]) -> String {
    if views.is_empty() {
        return "There is no volume: `onefold volume create NAME --size SIZE` makes one.\n"
            .to_owned();
    }
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.name.clone(),
                nsid_text(&view.namespaces),
                format_human(view.size_bytes),
                format_human(view.logical_bytes),
                view.lba_bytes.to_string(),
                on_or_off(view.dedup).to_owned(),
                view.compression.to_string(),
                view.verify.to_string(),
                domain_name(&view.domain).to_owned(),
                view.uuid.clone(),
            ]
        })
        .collect();
    table(
        &[
            "VOLUME",
            "NSID",
            "SIZE",
            "LOGICAL",
            "LBA",
            "DEDUP",
            "COMPRESSION",
            "VERIFY",
            "DOMAIN",
            "UUID",
        ],
        &rows,
        &[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
            Align::Left,
            Align::Left,
            Align::Left,
            Align::Left,
        ],
    )
}
