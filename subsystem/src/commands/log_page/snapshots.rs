//! Log pages that are made once and then read in pieces: Telemetry Host-Initiated and Persistent Event.
//!
//! Guarantees: all pieces show one moment; a controller holds at most one of each page, of bounded size, until it is reset
//! or ends; a host learns nothing about other hosts there.

use nvme::Status;
use nvme::admin::GetLogPage;
use nvme::log::{
    PERSISTENT_HEADER_BYTES, PersistentEventHeader, TELEMETRY_BLOCK_BYTES, TelemetryHeader,
};
use serde_json::{Value, json};

use super::{LPO_AT, LSP_AT};
use crate::connected_queue::command::{Command, Fault};
use crate::figures::{PoolSpace, SpaceDetail};
use crate::lock::lock;
use crate::queue::Queue;
use crate::target::Target;
use crate::target::record::{now_ms, timestamp};

/// Bytes of a telemetry log at most, its header included.
const TELEMETRY_BYTES_MAX: usize = 64 << 10;

/// The longest persistent event log, as PELS announces it.
pub(crate) const PERSISTENT_BYTES_MAX: usize = 64 << 10;

/// Of the log-specific field: make new telemetry data.
const CREATE_TELEMETRY: u8 = 1;

/// The log-specific field of the persistent event log, bits 1:0.
const READ: u8 = 0;
const ESTABLISH_AND_READ: u8 = 1;
const RELEASE: u8 = 2;
const ESTABLISH_AND_READ_HEADER: u8 = 3;

/// Telemetry is read in whole blocks.
pub(super) fn check_telemetry_offset(get: &GetLogPage) -> Result<(), Fault> {
    match get.offset.is_multiple_of(TELEMETRY_BLOCK_BYTES as u64) {
        true => Ok(()),
        false => Err(Fault::field(Status::INVALID_FIELD, LPO_AT)),
    }
}

/// The telemetry page.
pub(super) fn telemetry<Q: Queue>(
    command: &Command<Q>,
    get: &GetLogPage,
) -> Result<Vec<u8>, Fault> {
    check_telemetry_offset(get)?;
    let controller = &command.queue.controller;
    if get.lsp & CREATE_TELEMETRY == 0 {
        let snapshots = lock(&controller.snapshots);
        return Ok(match &snapshots.telemetry {
            Some(page) => page.to_vec(),
            None => TelemetryHeader {
                generation: snapshots.telemetry_generation,
                ..Default::default()
            }
            .encode()
            .to_vec(),
        });
    }
    let areas = [status_area(command), history_area(command)];
    let mut snapshots = lock(&controller.snapshots);
    snapshots.telemetry_generation = snapshots.telemetry_generation.wrapping_add(1);
    let page = telemetry_page(&areas, snapshots.telemetry_generation);
    snapshots.telemetry = Some(page.as_slice().into());
    Ok(page)
}

/// A page of texts, each of which is an area of its own.
fn telemetry_page(areas: &[String; 2], generation: u8) -> Vec<u8> {
    let mut page = vec![0; TELEMETRY_BLOCK_BYTES];
    let mut lasts = [0; 2];
    for (area, last) in areas.iter().zip(&mut lasts) {
        let room = TELEMETRY_BYTES_MAX - page.len();
        page.extend_from_slice(&area.as_bytes()[..area.len().min(room)]);
        page.resize(page.len().next_multiple_of(TELEMETRY_BLOCK_BYTES), b'\n');
        // At most 128 blocks, of which the header is number 0.
        *last = (page.len() / TELEMETRY_BLOCK_BYTES - 1) as u16;
    }
    let header = TelemetryHeader {
        area_1_last: lasts[0],
        area_2_last: lasts[1],
        area_3_last: lasts[1],
        generation,
        ..Default::default()
    };
    page[..TELEMETRY_BLOCK_BYTES].copy_from_slice(&header.encode());
    page
}

fn text_of(value: &Value) -> String {
    // A value without maps of odd keys can always be written.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Data area 1: how the target is, and this controller.
fn status_area<Q: Queue>(command: &Command<Q>) -> String {
    let (target, controller) = (&command.queue.target, &command.queue.controller);
    let status = target.engine().map(|engine| engine.status()).ok();
    let life = target.record.lifetime().plus(&target.health);
    text_of(&json!({
        "onefold": crate::VERSION,
        "milliseconds_since_1970": now_ms(),
        "subsystem": controller.subsystem.nqn.as_str(),
        "controller": {
            "cntlid": controller.id,
            "hostnqn": controller.host.nqn.as_str(),
            "host_address": controller.peer.to_string(),
            "target_address": controller.local.to_string(),
            "transport": controller.transport.to_string(),
            "io_queues": controller.io_queue_count(),
            "kato_ms": controller.kato_ms(),
            "configuration": controller.configuration(),
            "status": controller.status().encode(),
            "wanted_events": controller.events.wanted(),
        },
        "pool": status.as_ref().map(PoolSpace::new),
        "space": status.as_ref().map(SpaceDetail::new),
        "damaged_blocks": status.as_ref().map(|status| status.damaged_blocks),
        "verify": status.as_ref().map(|status| status.verify),
        "lifetime": life,
    }))
}

/// Data area 2: this controller's last failures.
fn history_area<Q: Queue>(command: &Command<Q>) -> String {
    let errors = lock(&command.queue.controller.errors);
    let errors = errors.iter().map(|(count, entry)| {
        json!({
            "count": count,
            "qid": entry.qid,
            "cid": entry.cid,
            "status": entry.status.to_string(),
            "location": entry.location,
            "lba": entry.lba,
            "nsid": entry.nsid,
        })
    });
    text_of(&json!({ "errors": errors.collect::<Vec<_>>() }))
}

/// The persistent event page. Behind the last event there are zeros, as far as the log can reach: nvme-cli reads as
/// much as it is told to, in pieces of 4 KiB, and asks with each piece for what the first one asked for.
pub(super) fn persistent_events<Q: Queue>(
    command: &Command<Q>,
    get: &GetLogPage,
) -> Result<Vec<u8>, Fault> {
    let (target, controller) = (&command.queue.target, &command.queue.controller);
    let out_of_sequence = Fault::field(Status::COMMAND_SEQUENCE, LSP_AT);
    let mut snapshots = lock(&controller.snapshots);
    let action = match get.lsp & 3 {
        // A further piece of what the first one established.
        ESTABLISH_AND_READ if get.offset > 0 && snapshots.persistent.is_some() => READ,
        action => action,
    };
    match action {
        READ => {
            let page = snapshots.persistent.as_ref().ok_or(out_of_sequence)?;
            Ok(padded(page.to_vec()))
        }
        action @ (ESTABLISH_AND_READ | ESTABLISH_AND_READ_HEADER) => {
            if snapshots.persistent.is_some() {
                return Err(out_of_sequence);
            }
            let header = PersistentEventHeader {
                sn: target.serial_of(controller),
                mn: crate::MODEL.to_owned(),
                subnqn: controller.subsystem.nqn.to_string(),
                reporting_context: PersistentEventHeader::CONTEXT_EXISTS,
                ..Default::default()
            };
            let mut page = persistent_page(target, header);
            snapshots.persistent = Some(page.as_slice().into());
            if action == ESTABLISH_AND_READ_HEADER {
                page.truncate(PERSISTENT_HEADER_BYTES);
                return Ok(page);
            }
            Ok(padded(page))
        }
        RELEASE => {
            snapshots.persistent = None;
            Ok(Vec::new())
        }
        _ => Err(Fault::field(Status::INVALID_FIELD, LSP_AT)),
    }
}

fn padded(mut page: Vec<u8>) -> Vec<u8> {
    page.resize(page.len().max(PERSISTENT_BYTES_MAX), 0);
    page
}

fn persistent_page(target: &Target, header: PersistentEventHeader) -> Vec<u8> {
    let events = target.record.events();
    let life = target.record.lifetime().plus(&target.health);
    let body = events.encode();
    let header = PersistentEventHeader {
        events: u32::try_from(events.len()).unwrap_or(u32::MAX),
        log_bytes: (PERSISTENT_HEADER_BYTES + body.len()) as u64,
        timestamp: timestamp(now_ms()),
        power_on_hours: u128::from(life.seconds / 3600),
        power_cycles: life.starts,
        generation: events.generation(),
        ..header
    };
    [&header.encode()[..], &body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_begin_with_whole_blocks_and_end_within_the_bound() {
        let page = telemetry_page(&["status\n".into(), "x".repeat(600)], 3);
        let header = TelemetryHeader::decode(&page).expect("a header");
        assert_eq!((header.area_1_last, header.area_2_last), (1, 3));
        assert_eq!((header.area_3_last, header.generation), (3, 3));
        assert_eq!(page.len(), 4 * TELEMETRY_BLOCK_BYTES);
        assert!(page[512..].starts_with(b"status\n\n"));
        assert!(page[1024..].starts_with(b"xxx"));
        let page = telemetry_page(&["x".repeat(1 << 20), "y".into()], 0);
        assert_eq!(page.len(), TELEMETRY_BYTES_MAX);
    }
}
