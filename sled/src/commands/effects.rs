//! All commands with their side effects: the Commands Supported and Effects log page.
//!
//! Guarantee: no command asks the host to stop I/O around it. A Linux host freezes I/O around a command that does, and
//! scans for namespaces after one that changes them.

use nvme::admin;
use nvme::command::FABRICS_OPCODE;
use nvme::io;
use nvme::log::CommandEffects;
use nvme::node_table;
use nvme::reservation;

/// It changes nothing but the controller's own state, or nothing at all.
const CONTROLLER: u32 = CommandEffects::SUPPORTED | CommandEffects::CONTROLLER_SCOPE;
/// It leaves the blocks of the drive as they are. No scope is told for I/O commands: Linux 6.1 complains about effects of
/// theirs that it does not know.
const READS: u32 = CommandEffects::SUPPORTED;
/// It changes blocks of the drive.
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
    (FABRICS_OPCODE, CONTROLLER),
];

/// Every I/O command, with its effects.
const IO: &[(u8, u32)] = &[
    (io::OPCODE_FLUSH, READS),
    (io::OPCODE_WRITE, WRITES),
    (io::OPCODE_READ, READS),
    (io::OPCODE_WRITE_ZEROES, WRITES),
    (io::OPCODE_DATASET_MANAGEMENT, WRITES),
    (reservation::OPCODE_RESERVATION_REGISTER, READS),
    (reservation::OPCODE_RESERVATION_REPORT, READS),
    (reservation::OPCODE_RESERVATION_ACQUIRE, READS),
    (reservation::OPCODE_RESERVATION_RELEASE, READS),
    (node_table::OPCODE_NODE_TABLE_SEND, READS),
    (node_table::OPCODE_NODE_TABLE_RECEIVE, READS),
    (FABRICS_OPCODE, READS),
];

/// The log page of a controller for I/O.
pub(crate) fn page() -> CommandEffects {
    let mut effects = CommandEffects::default();
    for (opcode, effect) in ADMIN {
        effects.acs[usize::from(*opcode)] = *effect;
    }
    for (opcode, effect) in IO {
        effects.iocs[usize::from(*opcode)] = *effect;
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_makes_a_host_freeze_its_io() {
        let effects = page();
        let harmful = CommandEffects::EXECUTION_MASK
            | CommandEffects::NAMESPACE_CAPABILITY_CHANGE
            | CommandEffects::NAMESPACE_INVENTORY_CHANGE;
        let mut all = effects.acs.iter().chain(&effects.iocs);
        assert!(all.all(|effect| effect & harmful == 0));
    }
}
