//! Get Log Page.
//!
//! Guarantees: an offset behind the end of a page is refused, whatever it is; a read that begins inside
//! is cut at the end of the page and filled with zeros; the answer is never longer than what the host
//! prepared, nor than the largest transfer.

use nvme::admin::{self, GetLogPage};
use nvme::identify::NSID_BROADCAST;
use nvme::log::{
    ChangedNamespaces, CommandEffects, ERROR_LOG_ENTRY_BYTES, ErrorLogEntry, FirmwareSlotLog,
    LogPage, SMART_LOG_BYTES, SmartLog,
};
use nvme::{Status, io};

use crate::command::{Command, Fault, Outcome};
use crate::discovery;
use crate::error_log::ERROR_LOG_ENTRIES;
use crate::queue::{Queue, lock};

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const LID_AT: u16 = 40;
const NUMD_AT: u16 = 42;
const LPO_AT: u16 = 48;
const OT_AT: u16 = 58;

/// A data unit of the SMART log: 1000 blocks of 512 bytes.
const DATA_UNIT_BYTES: u128 = 512_000;

/// Free space below which the SMART log warns, in percent.
const SPARE_THRESHOLD_PERCENT: u8 = 10;

/// Runs Get Log Page.
pub(crate) async fn run<Q: Queue>(command: &Command<Q>, get: GetLogPage) -> Outcome {
    check_fields(command, &get)?;
    // The page is made (and its event armed again) only when the rest of the command is right.
    let page = page(command, &get)?;
    let start = usize::try_from(get.offset)
        .ok()
        .filter(|&start| start <= page.len());
    let start = start.ok_or(Fault::field(Status::INVALID_FIELD, LPO_AT))?;
    // It fits, `check_fields` compared it with the largest transfer.
    let length = get.length as usize;
    let rest = &page[start..];
    command.send(&rest[..rest.len().min(length)], length).await
}

fn check_fields<Q: Queue>(command: &Command<Q>, get: &GetLogPage) -> Result<(), Fault> {
    if get.offset & 3 != 0 {
        return Err(Fault::field(Status::INVALID_FIELD, LPO_AT));
    }
    if get.offset_is_index {
        return Err(Fault::field(Status::INVALID_FIELD, OT_AT));
    }
    if get.length > command.line.target.limits.transfer_bytes_max() as u64 {
        return Err(Fault::field(Status::INVALID_FIELD, NUMD_AT));
    }
    command.check_data_room(get.length as usize)
}

fn page<Q: Queue>(command: &Command<Q>, get: &GetLogPage) -> Result<Vec<u8>, Fault> {
    let controller = &command.line.controller;
    let unknown = Fault::field(Status::INVALID_LOG_PAGE, LID_AT);
    match (LogPage::from_u8(get.lid), controller.is_discovery()) {
        (Some(LogPage::Error), _) => Ok(error_page(command)),
        (Some(LogPage::Discovery), true) => {
            if !get.retain_event {
                // Before the page is made: a change after this moment is reported again.
                controller.events.discovery_log_read();
            }
            Ok(discovery::log_page(&command.line.target, controller.local))
        }
        (Some(LogPage::Smart), false) => {
            // No namespace has health information of its own (LPA bit 0 is clear).
            if !matches!(get.nsid, 0 | NSID_BROADCAST) {
                return Err(Fault::field(Status::INVALID_FIELD, NSID_AT));
            }
            Ok(smart_page(command).to_vec())
        }
        (Some(LogPage::FirmwareSlot), false) => {
            Ok(FirmwareSlotLog::single(crate::VERSION).encode().to_vec())
        }
        (Some(LogPage::ChangedNamespaces), false) => {
            let list = match controller.events.read_changed_namespaces(get.retain_event) {
                Some(nsids) => ChangedNamespaces::List(nsids),
                None => ChangedNamespaces::TooMany,
            };
            Ok(list.encode().to_vec())
        }
        (Some(LogPage::CommandEffects), false) => Ok(effects_page().encode().to_vec()),
        _ => Err(unknown),
    }
}

fn error_page<Q: Queue>(command: &Command<Q>) -> Vec<u8> {
    let controller = &command.line.controller;
    let trtype = discovery::transport(controller.transport).trtype();
    let log = lock(&controller.errors);
    let mut page: Vec<u8> = log
        .iter()
        .flat_map(|(error_count, entry)| {
            ErrorLogEntry {
                error_count,
                sqid: entry.qid,
                cid: entry.cid,
                // As in the completion: the status stands above the phase bit.
                status_field: entry.status.bits() << 1,
                parameter_location: entry.location,
                lba: entry.lba,
                nsid: entry.nsid,
                trtype,
                ..Default::default()
            }
            .encode()
        })
        .collect();
    page.resize(ERROR_LOG_ENTRIES * ERROR_LOG_ENTRY_BYTES, 0);
    page
}

fn smart_page<Q: Queue>(command: &Command<Q>) -> [u8; SMART_LOG_BYTES] {
    let target = &command.line.target;
    let totals = target.health.totals();
    let space = target.engine.status();
    let spare = spare_percent(
        space.capacity_bytes - space.used_bytes.min(space.capacity_bytes),
        space.capacity_bytes,
    );
    let mut critical_warning = 0;
    if spare < SPARE_THRESHOLD_PERCENT {
        critical_warning |= 1;
    }
    if space.read_only.is_some() {
        critical_warning |= 1 << 3;
    }
    SmartLog {
        critical_warning,
        available_spare: spare,
        available_spare_threshold: SPARE_THRESHOLD_PERCENT,
        data_units_read: u128::from(totals.bytes_read).div_ceil(DATA_UNIT_BYTES),
        data_units_written: u128::from(totals.bytes_written).div_ceil(DATA_UNIT_BYTES),
        host_read_commands: u128::from(totals.read_commands),
        host_write_commands: u128::from(totals.write_commands),
        power_on_hours: u128::from(target.health.hours()),
        media_errors: u128::from(totals.media_errors),
        error_log_entries: u128::from(totals.error_entries),
        ..Default::default()
    }
    .encode()
}

/// Free space of the pool in percent of its capacity: the spare of a target whose namespaces are thin.
fn spare_percent(free_bytes: u64, capacity_bytes: u64) -> u8 {
    match capacity_bytes {
        0 => 100,
        capacity => (u128::from(free_bytes) * 100 / u128::from(capacity)).min(100) as u8,
    }
}

/// The commands there are. Nothing needs I/O to stop around it, and no command of a host changes the
/// namespaces: a Linux host would freeze I/O, or scan again, for nothing.
fn effects_page() -> CommandEffects {
    const ADMIN: [u8; 7] = [
        admin::OPCODE_GET_LOG_PAGE,
        admin::OPCODE_IDENTIFY,
        admin::OPCODE_ABORT,
        admin::OPCODE_SET_FEATURES,
        admin::OPCODE_GET_FEATURES,
        admin::OPCODE_ASYNC_EVENT_REQUEST,
        admin::OPCODE_KEEP_ALIVE,
    ];
    const READING: [u8; 3] = [io::OPCODE_FLUSH, io::OPCODE_READ, io::OPCODE_COMPARE];
    const WRITING: [u8; 3] = [
        io::OPCODE_WRITE,
        io::OPCODE_WRITE_ZEROES,
        io::OPCODE_DATASET_MANAGEMENT,
    ];
    let mut effects = CommandEffects::default();
    for opcode in ADMIN {
        effects.acs[usize::from(opcode)] = CommandEffects::SUPPORTED;
    }
    for opcode in READING {
        effects.iocs[usize::from(opcode)] = CommandEffects::SUPPORTED;
    }
    for opcode in WRITING {
        effects.iocs[usize::from(opcode)] =
            CommandEffects::SUPPORTED | CommandEffects::CONTENT_CHANGE;
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spare_is_what_the_pool_has_left() {
        assert_eq!(spare_percent(1, 0), 100);
        assert_eq!(spare_percent(0, 100), 0);
        assert_eq!(spare_percent(u64::MAX / 2, u64::MAX), 49);
    }

    #[test]
    fn no_command_makes_a_host_freeze_its_io() {
        let effects = effects_page();
        let harmful = CommandEffects::EXECUTION_MASK
            | CommandEffects::NAMESPACE_CAPABILITY_CHANGE
            | CommandEffects::NAMESPACE_INVENTORY_CHANGE;
        assert!(
            effects
                .acs
                .iter()
                .chain(&effects.iocs)
                .all(|effect| effect & harmful == 0)
        );
        assert_eq!(
            effects.iocs.iter().filter(|effect| **effect != 0).count(),
            6
        );
    }
}
