//! Commands of NVMe to a device of this machine, by the kernel's passthrough.
//!
//! Guarantees: the kernel touches no memory but the caller's buffer; an error status of the device is an error that has its
//! number. A command blocks as long as the device takes, which may be a minute or more: call it where nobody waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// `struct nvme_passthru_cmd` (linux/nvme_ioctl.h).
#[repr(C)]
#[derive(Default)]
struct PassthruCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    cdw10_to_15: [u32; 6],
    timeout_milliseconds: u32,
    result: u32,
}

const _: () = assert!(size_of::<PassthruCommand>() == 72);

/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const ADMIN_COMMAND: u32 = 0xc048_4e41;

/// The bits of an opcode that say where data go (NVMe Base 2.1, figure 92), and their value for data to the host.
pub(crate) const DIRECTION: u8 = 0b11;
pub(crate) const TO_HOST: u8 = 0b10;

/// Sends an admin command whose data come to the host, and fills `data` with them. `entry` is the command as a submission queue
/// has it; its identifier and where its data are are the kernel's. The device's own time limit is the system's: a shorter one
/// would reset the controller of a device that is slow once.
///
/// # Errors
/// The command sends data or has none, the device is not of NVMe ([`io::ErrorKind::Unsupported`]), the system does not let this process
/// ask ([`io::ErrorKind::PermissionDenied`]), or the device refuses it.
pub fn read_by_admin_command(
    device: impl AsFd,
    entry: &[u8; 64],
    data: &mut [u8],
) -> io::Result<()> {
    let opcode = entry[0];
    let data_bytes = u32::try_from(data.len()).map_err(io::Error::other)?;
    if opcode & DIRECTION != TO_HOST || data.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let word = |at: usize| {
        let bytes = [entry[at], entry[at + 1], entry[at + 2], entry[at + 3]];
        u32::from_le_bytes(bytes)
    };
    let mut command = PassthruCommand {
        opcode,
        nsid: word(4),
        cdw2: word(8),
        cdw3: word(12),
        address: data.as_mut_ptr() as u64,
        data_bytes,
        cdw10_to_15: std::array::from_fn(|at| word(40 + 4 * at)),
        ..PassthruCommand::default()
    };
    let device = device.as_fd().as_raw_fd();
    // SAFETY: the kernel reads and writes the command, which lives until the call returns, and writes at most `data_bytes`
    // bytes at `address`: the whole of a buffer that is borrowed mutably as long.
    let answer = unsafe {
        libc::ioctl(
            device,
            ADMIN_COMMAND as libc::Ioctl,
            ptr::from_mut(&mut command),
        )
    };
    match answer {
        0 => Ok(()),
        1.. => Err(io::Error::other(format!(
            "the device answers with the NVMe status {answer:#x}"
        ))),
        _ => Err(why(io::Error::last_os_error())),
    }
}

/// What kind of failure that is. Only devices of NVMe know the call.
fn why(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOTTY | libc::EINVAL) => io::Error::new(io::ErrorKind::Unsupported, error),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(opcode: u8) -> [u8; 64] {
        let mut entry = [0; 64];
        entry[0] = opcode;
        entry
    }

    #[test]
    fn a_file_is_no_device_and_its_buffer_stays_as_it_is() {
        let file = tempfile::tempfile().expect("a file");
        let mut data = [7; 512];
        let error = read_by_admin_command(&file, &entry(2), &mut data).expect_err("a file");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        assert_eq!(data, [7; 512]);
    }

    #[test]
    fn a_command_that_could_change_a_device_is_refused() {
        let file = tempfile::tempfile().expect("a file");
        // Format NVM has no data, Firmware Image Download sends some.
        for opcode in [0x80, 0x11, 0x84] {
            let error = read_by_admin_command(&file, &entry(opcode), &mut [0; 512]);
            let error = error.expect_err("it is no command that reads");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{opcode:#x}");
        }
        let error = read_by_admin_command(&file, &entry(2), &mut []).expect_err("no room");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
