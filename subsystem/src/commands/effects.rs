//! All commands with their side effects: the Commands Supported and Effects log page.
//!
//! Guarantee: no command asks the host to stop I/O around it. A Linux host freezes I/O around a command that does, and
//! scans for namespaces after one that changes them.

use nvme::admin;
use nvme::command::FABRICS_OPCODE;
use nvme::io;
use nvme::lba_status;
use nvme::log::CommandEffects;
use nvme::reservation;

/// It changes nothing but the controller's own state, or nothing at all.
const CONTROLLER: u32 = CommandEffects::SUPPORTED | CommandEffects::CONTROLLER_SCOPE;
/// It ends another controller, and changes nothing of its own.
const OTHERS: u32 = CommandEffects::SUPPORTED;
/// It reads what is in a namespace. No scope is told for I/O commands: Linux 6.1 complains about effects
/// of theirs that it does not know.
const READS: u32 = CommandEffects::SUPPORTED;
/// It changes what is in a namespace.
const WRITES: u32 = READS | CommandEffects::CONTENT_CHANGE;

/// Every admin command, with its effects.
const ADMIN: &[(u8, u32)] = &[
    (admin::OPCODE_GET_LOG_PAGE, CONTROLLER),
    (admin::OPCODE_IDENTIFY, CONTROLLER),
    (admin::OPCODE_ABORT, CONTROLLER),
    (admin::OPCODE_SET_FEATURES, CONTROLLER),
    (admin::OPCODE_GET_FEATURES, CONTROLLER),
    (admin::OPCODE_ASYNC_EVENT_REQUEST, CONTROLLER),
    (admin::OPCODE_KEEP_ALIVE, CONTROLLER),
    (admin::OPCODE_CROSS_CONTROLLER_RESET, OTHERS),
    (lba_status::OPCODE_GET_LBA_STATUS, CONTROLLER),
    (admin::OPCODE_NAMESPACE_MANAGEMENT, CONTROLLER),
    (admin::OPCODE_NAMESPACE_ATTACHMENT, CONTROLLER),
    (FABRICS_OPCODE, CONTROLLER),
];

/// Every I/O command, with its effects.
const IO: &[(u8, u32)] = &[
    (io::OPCODE_FLUSH, READS),
    (io::OPCODE_WRITE, WRITES),
    (io::OPCODE_READ, READS),
    (io::OPCODE_COMPARE, READS),
    (io::OPCODE_WRITE_ZEROES, WRITES),
    (io::OPCODE_DATASET_MANAGEMENT, WRITES),
    (reservation::OPCODE_RESERVATION_REGISTER, READS),
    (reservation::OPCODE_RESERVATION_REPORT, READS),
    (reservation::OPCODE_RESERVATION_ACQUIRE, READS),
    (reservation::OPCODE_RESERVATION_RELEASE, READS),
    (io::OPCODE_WRITE_UNCORRECTABLE, WRITES),
    (io::OPCODE_VERIFY, READS),
    (io::OPCODE_COPY, WRITES),
    (FABRICS_OPCODE, READS),
];

/// Admin commands of subsystems whose namespaces are managed by hosts. Hosts are told of the changes by an event, as of
/// any other change.
const MANAGEMENT: [u8; 2] = [
    admin::OPCODE_NAMESPACE_MANAGEMENT,
    admin::OPCODE_NAMESPACE_ATTACHMENT,
];

/// The log page, with or without the commands that manage namespaces.
pub(crate) fn page(with_management: bool) -> CommandEffects {
    let mut effects = CommandEffects::default();
    for (opcode, effect) in ADMIN {
        if !with_management && MANAGEMENT.contains(opcode) {
            continue;
        }
        effects.acs[usize::from(*opcode)] = *effect;
    }
    for (opcode, effect) in IO {
        effects.iocs[usize::from(*opcode)] = *effect;
    }
    effects
}

#[cfg(test)]
mod tests {
    use nvme::admin::AdminCommand;
    use nvme::io::IoCommand;
    use nvme::reservation::ReservationCommand;
    use nvme::{Sqe, Status};

    use super::*;

    #[test]
    fn no_command_makes_a_host_freeze_its_io() {
        let effects = page(true);
        let harmful = CommandEffects::EXECUTION_MASK
            | CommandEffects::NAMESPACE_CAPABILITY_CHANGE
            | CommandEffects::NAMESPACE_INVENTORY_CHANGE;
        let mut all = effects.acs.iter().chain(&effects.iocs);
        assert!(all.all(|effect| effect & harmful == 0));
    }

    #[test]
    fn what_is_announced_is_what_is_understood() {
        let unknown = Status::INVALID_OPCODE.with_dnr();
        let effects = page(true);
        for opcode in (0..=u8::MAX).filter(|opcode| *opcode != FABRICS_OPCODE) {
            let sqe = Sqe::new(opcode);
            let admin = effects.acs[usize::from(opcode)] != 0;
            let parsed = AdminCommand::parse(&sqe).err() != Some(unknown);
            assert_eq!(admin, parsed, "admin command {opcode:02x}h");
            let io = effects.iocs[usize::from(opcode)] != 0;
            let parsed = IoCommand::parse(&sqe).err() != Some(unknown)
                || ReservationCommand::parse(&sqe).is_some();
            assert_eq!(io, parsed, "I/O command {opcode:02x}h");
        }
    }
}
