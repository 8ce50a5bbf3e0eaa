//! Get Log Page.
//!
//! Guarantees: an offset behind the end of a page is refused; a read that begins inside is cut at the end of the page and
//! filled with zeros; the answer is never longer than the host's buffer, nor than the largest transfer.

pub(crate) mod snapshots;

use std::marker::PhantomData;

use nvme::Status;
use nvme::admin::GetLogPage;
use nvme::ana::RETURN_GROUPS_ONLY;
use nvme::identify::NSID_BROADCAST;
use nvme::log::{
    ChangedNamespaces, CommandEffects, FirmwareSlotLog, LogPage, SupportedLogPages, TelemetryHeader,
};

use super::{effects, features, namespace_management};
use crate::connected_queue::command::{Command, Fault, Outcome};
use crate::controller::Controller;
use crate::controller::events::EventKind;
use crate::lock::lock;
use crate::queue::Queue;
use crate::target::ana;
use crate::target::discovery;

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const LID_AT: u16 = 40;
const LSP_AT: u16 = 41;
const NUMD_AT: u16 = 42;
const LPO_AT: u16 = 48;
const OT_AT: u16 = 58;

/// A log page: which controllers have it, its scope, and how it is made.
struct Row<Q: Queue> {
    page: LogPage,
    /// The controllers that have it.
    offered: Offered,
    /// What it is about.
    scope: Scope,
    /// Its specific bits in the log of supported pages.
    specific: u32,
    /// The whole page, or so much of it that the command's range is covered.
    make: fn(&Command<Q>, &GetLogPage) -> Result<Vec<u8>, Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    Everywhere,
    Discovery,
    Io,
}

impl Offered {
    fn by(self, controller: &Controller) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Discovery => controller.is_discovery(),
            Self::Io => !controller.is_discovery(),
        }
    }
}

/// What a log page is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The controller or the subsystem: a namespace is not looked at.
    Controller,
    /// The same, and a namespace is refused: it could expect a page of its own (LPA bit 0 is clear).
    ControllerAlone,
}

struct Pages<Q>(PhantomData<Q>);

impl<Q: Queue> Pages<Q> {
    /// All log pages. What is listed here is announced, and can be read.
    const ALL: &'static [Row<Q>] = &[
        Row {
            page: LogPage::Supported,
            offered: Offered::Everywhere,
            scope: Scope::Controller,
            specific: 0,
            make: |command, _| {
                let pages = supported_pages::<Q>(&command.queue.controller);
                Ok(pages.encode().to_vec())
            },
        },
        Row {
            page: LogPage::Error,
            offered: Offered::Everywhere,
            scope: Scope::Controller,
            specific: 0,
            make: |command, _| Ok(error_page(command)),
        },
        Row {
            page: LogPage::Smart,
            offered: Offered::Io,
            scope: Scope::ControllerAlone,
            specific: 0,
            make: |command, _| Ok(command.queue.target.smart_log().encode().to_vec()),
        },
        Row {
            page: LogPage::FirmwareSlot,
            offered: Offered::Io,
            scope: Scope::Controller,
            specific: 0,
            make: |_, _| Ok(FirmwareSlotLog::single(crate::VERSION).encode().to_vec()),
        },
        Row {
            page: LogPage::ChangedNamespaces,
            offered: Offered::Io,
            scope: Scope::Controller,
            specific: 0,
            make: |command, get| Ok(changed_namespaces(command, get).encode().to_vec()),
        },
        Row {
            page: LogPage::CommandEffects,
            offered: Offered::Io,
            scope: Scope::Controller,
            specific: 0,
            make: |command, _| {
                let manages = namespace_management::is_allowed(command);
                Ok(effects::page(manages).encode().to_vec())
            },
        },
        Row {
            page: LogPage::TelemetryHost,
            offered: Offered::Io,
            scope: Scope::ControllerAlone,
            specific: 0,
            make: snapshots::telemetry,
        },
        Row {
            page: LogPage::TelemetryController,
            offered: Offered::Io,
            scope: Scope::ControllerAlone,
            specific: 0,
            // LPA bit 3 announces both telemetry pages. This target makes no telemetry by itself: the header says so.
            make: |_, get| {
                snapshots::check_telemetry_offset(get)?;
                let header = TelemetryHeader {
                    lid: LogPage::TelemetryController.as_u8(),
                    ..Default::default()
                };
                Ok(header.encode().to_vec())
            },
        },
        Row {
            page: LogPage::PersistentEvent,
            offered: Offered::Io,
            scope: Scope::ControllerAlone,
            specific: SupportedLogPages::ESTABLISH_AND_READ_HEADER,
            make: snapshots::persistent_events,
        },
        Row {
            page: LogPage::FeatureEffects,
            offered: Offered::Io,
            scope: Scope::Controller,
            specific: 0,
            make: |_, _| Ok(features::effects_page().encode().to_vec()),
        },
        Row {
            page: LogPage::ManagementEffects,
            offered: Offered::Io,
            scope: Scope::Controller,
            specific: 0,
            // There is no management endpoint, so it has no commands.
            make: |_, _| Ok(CommandEffects::default().encode().to_vec()),
        },
        Row {
            page: LogPage::ControllerResets,
            offered: Offered::Io,
            scope: Scope::Controller,
            specific: 0,
            make: |command, get| {
                let mut resets = lock(&command.queue.controller.resets);
                Ok(resets.read(get.retain_event).encode().to_vec())
            },
        },
        Row {
            page: LogPage::Discovery,
            offered: Offered::Discovery,
            scope: Scope::Controller,
            specific: 0,
            make: |command, get| {
                let queue = &command.queue;
                Ok(discovery::log_page(
                    &queue.target,
                    &queue.controller,
                    get.offset,
                ))
            },
        },
        Row {
            page: LogPage::Ana,
            offered: Offered::Io,
            scope: Scope::Controller,
            specific: 0,
            make: |command, get| {
                let live = command.queue.target.live();
                let log = ana::log(&live, &command.queue.controller);
                let mut page = log.encode(get.lsp & RETURN_GROUPS_ONLY != 0);
                // nvme-cli reads the longest log that there can be, in pieces.
                page.resize(ana::LOG_BYTES_MAX, 0);
                Ok(page)
            },
        },
        Row {
            page: LogPage::ReservationNotification,
            offered: Offered::Io,
            scope: Scope::Controller,
            specific: 0,
            make: |command, get| {
                let controller = &command.queue.controller;
                let page = controller.reservations.read(get.retain_event);
                if page.more > 0 && !get.retain_event {
                    controller.events.raise(EventKind::ReservationNotification);
                }
                Ok(page.encode().to_vec())
            },
        },
    ];

    /// The page of that identifier, if the controller has it.
    fn of(controller: &Controller, lid: u8) -> Option<&'static Row<Q>> {
        let page = LogPage::from_u8(lid)?;
        let mut rows = Self::ALL.iter();
        rows.find(|row| row.page == page && row.offered.by(controller))
    }
}

/// Runs Get Log Page.
pub(crate) async fn run<Q: Queue>(command: &Command<Q>, get: GetLogPage) -> Outcome {
    let controller = &command.queue.controller;
    let row = Pages::<Q>::of(controller, get.lid);
    let row = row.ok_or(Fault::field(Status::INVALID_LOG_PAGE, LID_AT))?;
    check_fields(command, row.scope, &get)?;
    if !get.retain_event {
        // Before the page is made: a change after this moment is reported again.
        controller.events.log_read(row.page);
    }
    let page = (row.make)(command, &get)?;
    let start = usize::try_from(get.offset)
        .ok()
        .filter(|&start| start <= page.len());
    let start = start.ok_or(Fault::field(Status::INVALID_FIELD, LPO_AT))?;
    // It fits, `check_fields` compared it with the largest transfer.
    let length = get.length as usize;
    let rest = &page[start..];
    command.send(&rest[..rest.len().min(length)], length).await
}

fn check_fields<Q: Queue>(
    command: &Command<Q>,
    scope: Scope,
    get: &GetLogPage,
) -> Result<(), Fault> {
    if scope == Scope::ControllerAlone && !matches!(get.nsid, 0 | NSID_BROADCAST) {
        return Err(Fault::field(Status::INVALID_FIELD, NSID_AT));
    }
    if get.offset & 3 != 0 {
        return Err(Fault::field(Status::INVALID_FIELD, LPO_AT));
    }
    if get.offset_is_index {
        return Err(Fault::field(Status::INVALID_FIELD, OT_AT));
    }
    if get.length > command.queue.target.limits.transfer_bytes_max() as u64 {
        return Err(Fault::field(Status::INVALID_FIELD, NUMD_AT));
    }
    command.check_data_room(get.length as usize)
}

fn supported_pages<Q: Queue>(controller: &Controller) -> SupportedLogPages {
    let mut pages = SupportedLogPages::default();
    for row in Pages::<Q>::ALL {
        if row.offered.by(controller) {
            let lid = usize::from(row.page.as_u8());
            pages.0[lid] = SupportedLogPages::SUPPORTED | row.specific;
        }
    }
    pages
}

fn changed_namespaces<Q: Queue>(command: &Command<Q>, get: &GetLogPage) -> ChangedNamespaces {
    let events = &command.queue.controller.events;
    match events.read_changed_namespaces(get.retain_event) {
        Some(nsids) => ChangedNamespaces::List(nsids),
        None => ChangedNamespaces::TooMany,
    }
}

fn error_page<Q: Queue>(command: &Command<Q>) -> Vec<u8> {
    let controller = &command.queue.controller;
    let trtype = fabric::discovery::transport(controller.transport, fabric::TlsMode::Off).trtype();
    lock(&controller.errors).encode(trtype)
}
