//! The status field of a completion (Base 2.0, section 3.3.3.2.1).

use std::fmt;

/// Status code type, status code and the More / Do Not Retry bits, as bits 15:1 of a completion's
/// last half-word shifted down by one: SC 7:0, SCT 10:8, CRD 12:11, M 13, DNR 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The specification's words for the code, or `None` for one that is not known here.
            #[must_use]
            pub const fn text(self) -> Option<&'static str> {
                match self.0 & 0x7ff { $($value => Some($text),)* _ => None }
            }
        }
    };
}

statuses! {
    /// 00h: the command completed.
    SUCCESS = 0x000, "Successful Completion";
    /// 01h: the opcode, or the Fabrics command type, is not known.
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    /// 02h: a field has a reserved or unsupported value.
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    /// 03h: the identifier is in use by a command in flight.
    COMMAND_ID_CONFLICT = 0x003, "Command ID Conflict";
    /// 04h: the data could not be moved between host and controller.
    DATA_TRANSFER_ERROR = 0x004, "Data Transfer Error";
    /// 06h: the controller failed inside.
    INTERNAL = 0x006, "Internal Error";
    /// 07h: the host asked for this with Abort.
    ABORT_REQUESTED = 0x007, "Command Abort Requested";
    /// 08h: the queue was deleted under the command.
    ABORTED_SQ_DELETION = 0x008, "Command Aborted due to SQ Deletion";
    /// 09h: the other command of a fused operation failed.
    FAILED_FUSED = 0x009, "Command Aborted due to Failed Fused Command";
    /// 0Ah: the other command of a fused operation did not come next to it.
    MISSING_FUSED = 0x00a, "Command Aborted due to Missing Fused Command";
    /// 0Bh: the namespace, or its format, is not valid.
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    /// 0Ch: the command came at the wrong time.
    COMMAND_SEQUENCE = 0x00c, "Command Sequence Error";
    /// 0Dh: a segment descriptor of the SGL is wrong.
    INVALID_SGL_SEGMENT = 0x00d, "Invalid SGL Segment Descriptor";
    /// 0Eh: more SGL descriptors than the controller takes.
    INVALID_SGL_COUNT = 0x00e, "Invalid Number of SGL Descriptors";
    /// 0Fh: the SGL's length does not fit the command.
    SGL_LENGTH_INVALID = 0x00f, "Data SGL Length Invalid";
    /// 11h: the descriptor type is not supported.
    SGL_TYPE_INVALID = 0x011, "SGL Descriptor Type Invalid";
    /// 16h: the offset of in-capsule data is not valid.
    SGL_OFFSET_INVALID = 0x016, "SGL Offset Invalid";
    /// 18h: host identifiers of an association differ.
    HOST_ID_INCONSISTENT = 0x018, "Host Identifier Inconsistent Format";
    /// 19h: the keep-alive timer ran out.
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    /// 1Ah: the keep-alive timeout is not acceptable.
    KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    /// 20h: the namespace takes no writes.
    NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    /// 21h: the controller could not go on with the command; try again.
    COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
    /// 22h: the transport damaged the data on its way; try again.
    TRANSIENT_TRANSPORT = 0x022, "Transient Transport Error";
    /// 80h: the range ends beyond the namespace.
    LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
    /// 81h: the pool behind a thin namespace is full.
    CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
    /// 82h: the namespace cannot serve now; try again.
    NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
    /// 83h: a reservation of another host forbids it.
    RESERVATION_CONFLICT = 0x083, "Reservation Conflict";
    /// 109h: the log page is not supported.
    INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
    /// 10Ah: the LBA format is not supported.
    INVALID_FORMAT = 0x10a, "Invalid Format";
    /// 10Dh: the feature's value cannot be kept over a reset.
    FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    /// 10Eh: the feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    /// 105h: more Asynchronous Event Requests than the limit.
    ASYNC_EVENT_LIMIT = 0x105, "Asynchronous Event Request Limit Exceeded";
    /// 115h: the namespace needs more than there can be.
    NAMESPACE_INSUFFICIENT_CAPACITY = 0x115, "Namespace Insufficient Capacity";
    /// 116h: no identifier is free for the namespace.
    NAMESPACE_ID_UNAVAILABLE = 0x116, "Namespace Identifier Unavailable";
    /// 118h: a controller has the namespace already.
    NAMESPACE_ALREADY_ATTACHED = 0x118, "Namespace Already Attached";
    /// 119h: the namespace is another controller's alone.
    NAMESPACE_IS_PRIVATE = 0x119, "Namespace Is Private";
    /// 11Ah: a controller does not have the namespace.
    NAMESPACE_NOT_ATTACHED = 0x11a, "Namespace Not Attached";
    /// 11Ch: the list names a controller that is not there, or none at all.
    CONTROLLER_LIST_INVALID = 0x11c, "Controller List Invalid";
    /// 129h: the command set is not supported.
    COMMAND_SET_NOT_SUPPORTED = 0x129, "I/O Command Set Not Supported";
    /// 12Bh: these command sets cannot be enabled together.
    COMMAND_SET_COMBINATION_REJECTED = 0x12b, "I/O Command Set Combination Rejected";
    /// 13Fh: a reset of this controller, which the host asked for before, is under way (Base 2.3, section 5.4.3).
    CROSS_CONTROLLER_RESET_IN_PROGRESS = 0x13f, "Cross-Controller Reset In Progress";
    /// 140h: the log page that a reset is told in has no room: the host has to read it first.
    LOG_PAGE_FULL = 0x140, "Log Page Full";
    /// 141h: as many resets as the controller announces are under way.
    LIMIT_EXCEEDED = 0x141, "Limit Exceeded";
    /// 180h: the Connect record format is not supported.
    CONNECT_INCOMPATIBLE_FORMAT = 0x180, "Connect Incompatible Format";
    /// 181h: the controller or queue is busy; try again.
    CONNECT_CONTROLLER_BUSY = 0x181, "Connect Controller Busy";
    /// 182h: a parameter of Connect is wrong; the result names it.
    CONNECT_INVALID_PARAMETERS = 0x182, "Connect Invalid Parameters";
    /// 183h: restart discovery.
    CONNECT_RESTART_DISCOVERY = 0x183, "Connect Restart Discovery, or Command Size Limit Exceeded";
    /// 184h: this host may not connect.
    CONNECT_INVALID_HOST = 0x184, "Connect Invalid Host";
    /// 185h: the queue is of a type that Disconnect does not take.
    INVALID_QUEUE_TYPE = 0x185, "Invalid Queue Type, or Incompatible Namespace or Format";
    /// 186h: data would have to be moved.
    FAST_COPY_NOT_POSSIBLE = 0x186, "Fast Copy Not Possible";
    /// 187h: what is written overlaps what is read.
    OVERLAPPING_IO_RANGE = 0x187, "Overlapping I/O Range";
    /// 190h: the discovery log changed under the reader.
    DISCOVER_RESTART = 0x190, "Discover Restart";
    /// 191h: the host has to authenticate first.
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";
    /// 280h: the data could not be written.
    WRITE_FAULT = 0x280, "Write Fault";
    /// 281h: the data could not be read back right.
    UNRECOVERED_READ = 0x281, "Unrecovered Read Error";
    /// 285h: the data differ from what Compare sent.
    COMPARE_FAILURE = 0x285, "Compare Failure";
    /// 301h: the path is gone for good.
    ASYMMETRIC_PERSISTENT_LOSS = 0x301, "Asymmetric Access Persistent Loss";
    /// 302h: the path does not reach the namespace now.
    ASYMMETRIC_INACCESSIBLE = 0x302, "Asymmetric Access Inaccessible";
    /// 303h: the path is changing; try again.
    ASYMMETRIC_TRANSITION = 0x303, "Asymmetric Access Transition";
    /// 701h, vendor specific: another node keeps the entry of the node table.
    NODE_ENTRY_KEPT = 0x701, "Node Table Entry Kept by Another Node";
    /// 702h, vendor specific: the node table has a description with a later revision.
    DESCRIPTION_OLDER = 0x702, "Node Table Description Older than the Present One";
    /// 703h, vendor specific: the node table's list of drained machines is of another revision than the one to replace.
    DRAINED_REPLACED = 0x703, "Node Table List of Another Revision";
}

const DNR: u16 = 1 << 14;
const MORE: u16 = 1 << 13;
/// CRD: which of the delays CRDT1 to CRDT3 a host should wait before it repeats the command.
const RETRY_DELAY_SHIFT: u16 = 11;

impl Status {
    /// 183h, of an I/O command: more, or longer, ranges than the limits that are announced.
    pub const COMMAND_SIZE_LIMIT: Self = Self::CONNECT_RESTART_DISCOVERY;
    /// 185h, of an I/O command: the blocks of one namespace are of another size than those of the other.
    pub const INCOMPATIBLE_NAMESPACE: Self = Self::INVALID_QUEUE_TYPE;

    /// From bits 15:1 of the completion's status half-word, shifted down by one.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// Bits as in [`Status::from_bits`].
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Status code type and status code alone: what the constants are compared by.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// The same with Do Not Retry set: the host gives up at once.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// The same with More set: the error log has an entry about it.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// The same with a retry delay: 1 to 3 for CRDT1 to CRDT3 of Identify Controller, 0 for none.
    #[must_use]
    pub const fn with_retry_delay(self, delay: u8) -> Self {
        Self(self.0 & !(3 << RETRY_DELAY_SHIFT) | (delay as u16 & 3) << RETRY_DELAY_SHIFT)
    }

    /// The retry delay: 1 to 3 for CRDT1 to CRDT3 of Identify Controller, 0 for none.
    #[must_use]
    pub const fn retry_delay(self) -> u8 {
        (self.0 >> RETRY_DELAY_SHIFT & 3) as u8
    }

    /// Do Not Retry is set.
    #[must_use]
    pub const fn is_dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// The command did what it was asked for.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.0 & 0x7ff;
        match self.text() {
            Some(text) => write!(f, "{text} ({code:03X}h")?,
            None => write!(f, "status {code:03X}h (not in this program's table")?,
        }
        if self.is_dnr() {
            f.write_str(", do not retry)")
        } else {
            f.write_str(")")
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn do_not_retry_survives_and_the_code_is_compared_without_it() {
        let status = Status::INVALID_FIELD.with_dnr();
        assert!(status.is_dnr());
        assert_eq!(status.code(), Status::INVALID_FIELD);
        assert_eq!(Status::from_bits(status.bits()), status);
        assert_eq!(
            status.to_string(),
            "Invalid Field in Command (002h, do not retry)"
        );
        assert!(Status::SUCCESS.is_success() && !status.is_success());
        let delayed = status.with_retry_delay(1).with_retry_delay(2);
        assert_eq!((delayed.retry_delay(), delayed.code()), (2, status.code()));
    }
}
