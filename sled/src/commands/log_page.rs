//! Get Log Page.
//!
//! Guarantees: an offset behind the end of a page is refused; a read that begins inside is cut at the end of the page and
//! filled with zeros; the answer is never longer than the host's buffer, nor than the largest transfer.

use fabric::TlsMode;
use nvme::Status;
use nvme::admin::GetLogPage;
use nvme::log::{ChangedNamespaces, FirmwareSlotLog, LogPage, SupportedLogPages};
use nvme::reservation::ReservationNotification;
use reactor::lock_whole as lock;

use super::{discovery, effects};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::queue::{Command, Fault, Outcome};

/// Byte offsets in the command, for the error log.
const LID_AT: u16 = 40;
const NUMD_AT: u16 = 42;
const LPO_AT: u16 = 48;
const OT_AT: u16 = 58;

/// The log pages of controllers for I/O, and of those for discovery.
const IO_PAGES: &[LogPage] = &[
    LogPage::Supported,
    LogPage::Error,
    LogPage::Smart,
    LogPage::FirmwareSlot,
    LogPage::ChangedNamespaces,
    LogPage::CommandEffects,
    LogPage::ReservationNotification,
];
const DISCOVERY_PAGES: &[LogPage] = &[LogPage::Supported, LogPage::Error, LogPage::Discovery];

/// Runs Get Log Page.
pub(crate) async fn run(command: &Command, get: GetLogPage) -> Outcome {
    let unknown = Fault::field(Status::INVALID_LOG_PAGE, LID_AT);
    let page = LogPage::from_u8(get.lid).ok_or(unknown)?;
    let page = make(command, page).ok_or(unknown)?;
    if get.offset_is_index {
        return Err(Fault::field(Status::INVALID_FIELD, OT_AT));
    }
    let length = usize::try_from(get.length)
        .ok()
        .filter(|&length| length <= TRANSFER_BYTES_MAX)
        .ok_or(Fault::field(Status::INVALID_FIELD, NUMD_AT))?;
    command.check_data_room(length)?;
    let wrong_offset = Fault::field(Status::INVALID_FIELD, LPO_AT);
    let slice = nvme::log::slice_page(&page, get.offset, length).map_err(|_| wrong_offset)?;
    command.send(&slice, length).await
}

/// The whole page; `None` if this kind of controller does not have it.
fn make(command: &Command, page: LogPage) -> Option<Vec<u8>> {
    let (sled, controller) = (&command.queue.sled, &command.queue.controller);
    let pages = match controller.is_discovery() {
        true => DISCOVERY_PAGES,
        false => IO_PAGES,
    };
    if !pages.contains(&page) {
        return None;
    }
    Some(match page {
        LogPage::Supported => {
            let mut supported = SupportedLogPages::default();
            for page in pages {
                supported.0[usize::from(page.as_u8())] = SupportedLogPages::SUPPORTED;
            }
            supported.encode().to_vec()
        }
        LogPage::Error => {
            let transport = fabric::discovery::transport(controller.transport, TlsMode::Off);
            lock(&controller.errors).encode(transport.trtype())
        }
        LogPage::Smart => sled.smart_log().encode().to_vec(),
        LogPage::FirmwareSlot => FirmwareSlotLog::single(crate::VERSION).encode().to_vec(),
        LogPage::ChangedNamespaces => ChangedNamespaces::List(Vec::new()).encode().to_vec(),
        LogPage::CommandEffects => effects::page().encode().to_vec(),
        // Hosts are told of nothing by events: feature 82h says that all are masked.
        LogPage::ReservationNotification => ReservationNotification::default().encode().to_vec(),
        LogPage::Discovery => discovery::log_page(sled, controller),
        _ => return None,
    })
}
