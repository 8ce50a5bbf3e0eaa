//! The 64-byte submission queue entry (Base 2.0, figure 86) as fields, for both sides.

use crate::{SglDescriptor, Status};

/// Bytes of a submission queue entry.
pub const SQE_BYTES: usize = 64;

/// Fabrics commands share this opcode on every queue.
pub const FABRICS_OPCODE: u8 = 0x7f;

/// A submission queue entry: raw bytes with named accessors. Nothing is validated until a parser
/// ([`crate::admin`], [`crate::io`], [`crate::fabrics`]) makes a typed command of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sqe(pub [u8; SQE_BYTES]);

const _: () = assert!(size_of::<Sqe>() == SQE_BYTES);

impl Sqe {
    /// An entry with this opcode, all else zero but the PSDT bits, which on fabrics always say SGL
    /// (`PSDT = 01b`, NVMe-oF 1.1 section 2.1).
    #[must_use]
    pub const fn new(opcode: u8) -> Self {
        let mut bytes = [0; SQE_BYTES];
        bytes[0] = opcode;
        bytes[1] = 0x40;
        Self(bytes)
    }

    /// The first 64 bytes of a capsule, or `None` when it is shorter.
    #[must_use]
    pub fn from_capsule(capsule: &[u8]) -> Option<Self> {
        capsule.first_chunk().map(|bytes| Self(*bytes))
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn set_word(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Opcode, byte 0.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Byte 1: FUSE in bits 1:0, PSDT in bits 7:6.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Fused operation: 0 for a command of its own.
    #[must_use]
    pub const fn fuse(&self) -> u8 {
        self.0[1] & 3
    }

    /// The same with another fused operation: 1 the first command of one, 2 its second.
    #[must_use]
    pub const fn with_fuse(mut self, fuse: u8) -> Self {
        self.0[1] = self.0[1] & !3 | fuse & 3;
        self
    }

    /// PRP or SGL for data transfer: 1 on fabrics.
    #[must_use]
    pub const fn psdt(&self) -> u8 {
        self.0[1] >> 6
    }

    /// Command identifier: all 16 bits are the host's, and come back in the completion.
    #[must_use]
    pub fn cid(&self) -> u16 {
        self.half(2)
    }

    /// Sets the command identifier.
    pub fn set_cid(&mut self, cid: u16) {
        self.0[2..4].copy_from_slice(&cid.to_le_bytes());
    }

    /// Namespace identifier, bytes 4..8.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.word(4)
    }

    /// Sets the namespace identifier.
    #[must_use]
    pub fn with_nsid(mut self, nsid: u32) -> Self {
        self.set_word(4, nsid);
        self
    }

    /// Fabrics command type, byte 4 of a Fabrics command.
    #[must_use]
    pub const fn fctype(&self) -> u8 {
        self.0[4]
    }

    /// Whether the opcode says that data moves, in whichever direction: bits 1:0 of it, or of FCTYPE for a Fabrics
    /// command, are not 0 (Base 2.0, section 3.1.4.3 and figure 86; NVMe-oF 1.1, section 3.2).
    #[must_use]
    pub const fn moves_data(&self) -> bool {
        let code = match self.opcode() {
            FABRICS_OPCODE => self.fctype(),
            opcode => opcode,
        };
        code & 3 != 0
    }

    /// The 16 bytes of the data pointer.
    #[must_use]
    pub fn dptr(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.0[24..40]);
        bytes
    }

    /// The data pointer as an SGL descriptor.
    ///
    /// # Errors
    /// The status to answer with, when the type is unknown.
    pub fn sgl(&self) -> Result<SglDescriptor, Status> {
        SglDescriptor::parse(&self.dptr())
    }

    /// Sets the data pointer.
    pub fn set_sgl(&mut self, sgl: &SglDescriptor) {
        self.0[24..40].copy_from_slice(&sgl.encode());
    }

    /// Command dword `index`, 10 to 15; another index gives 0.
    #[must_use]
    pub fn cdw(&self, index: usize) -> u32 {
        match index {
            10..=15 => self.word(index * 4),
            _ => 0,
        }
    }

    /// Sets command dword `index`, 10 to 15; another index does nothing.
    #[must_use]
    pub fn with_cdw(mut self, index: usize, value: u32) -> Self {
        if (10..=15).contains(&index) {
            self.set_word(index * 4, value);
        }
        self
    }

    /// Command dwords 10 and 11 as one number: the starting LBA of an I/O command.
    #[must_use]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw(10)) | u64::from(self.cdw(11)) << 32
    }

    /// Fuse and PSDT as every command here needs them: no fused operations, and SGLs.
    ///
    /// # Errors
    /// Invalid Field with Do Not Retry.
    pub fn check_flags(&self) -> Result<(), Status> {
        if self.fuse() == 0 && self.psdt() == 1 {
            Ok(())
        } else {
            Err(Status::INVALID_FIELD.with_dnr())
        }
    }
}

impl std::fmt::Debug for Sqe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sqe")
            .field("opcode", &format_args!("{:#04x}", self.opcode()))
            .field("cid", &self.cid())
            .field("nsid", &self.nsid())
            .field("cdw10", &format_args!("{:#x}", self.cdw(10)))
            .finish_non_exhaustive()
    }
}
