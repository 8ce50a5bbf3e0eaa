//! The private data of the RDMA connection manager's messages (NVMe/RDMA transport 1.0, section 3.2;
//! Linux `include/linux/nvme-rdma.h`). Little endian.

/// Bytes of the request's and the reply's private data.
pub const PRIVATE_DATA_BYTES: usize = 32;

/// The admin queue's receive size in a request, whatever the host will use (`NVME_AQ_DEPTH`).
pub const ADMIN_QUEUE_DEPTH: u16 = 32;

/// What a host says when it asks for a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaCmRequest {
    /// 0 for the admin queue.
    pub qid: u16,
    /// Entries of the host's receive queue: responses it can take.
    pub hrqsize: u16,
    /// Entries of the host's send queue, zero based: commands it may have in flight, less one.
    pub hsqsize: u16,
    /// The controller an I/O queue is for; 0 from kernels that do not fill it.
    pub cntlid: u16,
}

/// Status of a rejected request (`enum nvme_rdma_cm_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u16)]
pub enum RdmaCmStatus {
    /// Private data of the wrong length.
    #[error("invalid private data length")]
    InvalidLength = 1,
    /// A record format other than 0.
    #[error("invalid record format")]
    InvalidRecordFormat = 2,
    /// A queue identifier out of range.
    #[error("invalid queue identifier")]
    InvalidQueueId = 3,
    /// A host send queue size that cannot be served.
    #[error("invalid host SQ size")]
    InvalidHsqSize = 4,
    /// A host receive queue size that cannot be served.
    #[error("invalid host RQ size")]
    InvalidHrqSize = 5,
    /// No resources now.
    #[error("no resources")]
    NoResources = 6,
    /// IRD of the request is not acceptable.
    #[error("invalid IRD")]
    InvalidIrd = 7,
    /// ORD of the request is not acceptable.
    #[error("invalid ORD")]
    InvalidOrd = 8,
    /// A controller identifier that is not known.
    #[error("invalid controller identifier")]
    InvalidControllerId = 9,
}

impl RdmaCmStatus {
    /// The status behind a number of the wire.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::InvalidLength,
            2 => Self::InvalidRecordFormat,
            3 => Self::InvalidQueueId,
            4 => Self::InvalidHsqSize,
            5 => Self::InvalidHrqSize,
            6 => Self::NoResources,
            7 => Self::InvalidIrd,
            8 => Self::InvalidOrd,
            9 => Self::InvalidControllerId,
            _ => return None,
        })
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl RdmaCmRequest {
    /// Parses and checks what does not depend on the target: length, format and non-zero sizes.
    ///
    /// # Errors
    /// The status to reject with.
    pub fn parse(bytes: &[u8]) -> Result<Self, RdmaCmStatus> {
        if bytes.len() < PRIVATE_DATA_BYTES {
            return Err(RdmaCmStatus::InvalidLength);
        }
        if half(bytes, 0) != 0 {
            return Err(RdmaCmStatus::InvalidRecordFormat);
        }
        let request = Self {
            qid: half(bytes, 2),
            hrqsize: half(bytes, 4),
            hsqsize: half(bytes, 6),
            cntlid: half(bytes, 8),
        };
        if request.hrqsize == 0 {
            return Err(RdmaCmStatus::InvalidHrqSize);
        }
        if request.hsqsize == 0 || request.hsqsize == u16::MAX {
            return Err(RdmaCmStatus::InvalidHsqSize);
        }
        Ok(request)
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; PRIVATE_DATA_BYTES] {
        let mut out = [0; PRIVATE_DATA_BYTES];
        for (at, value) in [
            (2, self.qid),
            (4, self.hrqsize),
            (6, self.hsqsize),
            (8, self.cntlid),
        ] {
            out[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        out
    }
}

/// What a target says when it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaCmAccept {
    /// Entries of the controller's receive queue: commands it can take.
    pub crqsize: u16,
}

impl RdmaCmAccept {
    /// Parses the reply's private data; `None` when it is too short or of another format.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= 4 && half(bytes, 0) == 0).then(|| Self {
            crqsize: half(bytes, 2),
        })
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; PRIVATE_DATA_BYTES] {
        let mut out = [0; PRIVATE_DATA_BYTES];
        out[2..4].copy_from_slice(&self.crqsize.to_le_bytes());
        out
    }
}

/// What a target says when it rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaCmReject {
    /// Why, as on the wire; see [`RdmaCmStatus::from_number`].
    pub status: u16,
}

impl RdmaCmReject {
    /// Parses the reject's private data; `None` when it is too short or of another format.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= 4 && half(bytes, 0) == 0).then(|| Self {
            status: half(bytes, 2),
        })
    }

    /// The wire form, 4 bytes.
    #[must_use]
    pub const fn encode(&self) -> [u8; 4] {
        let status = self.status.to_le_bytes();
        [0, 0, status[0], status[1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_request_reads_back() {
        let request = RdmaCmRequest {
            qid: 2,
            hrqsize: 128,
            hsqsize: 127,
            cntlid: 9,
        };
        assert_eq!(RdmaCmRequest::parse(&request.encode()), Ok(request));
    }

    #[test]
    fn malformed_requests_are_rejected_with_their_reason() {
        let good = RdmaCmRequest {
            qid: 0,
            hrqsize: 32,
            hsqsize: 31,
            cntlid: 0,
        };
        assert_eq!(
            RdmaCmRequest::parse(&good.encode()[..31]),
            Err(RdmaCmStatus::InvalidLength)
        );
        let mut bytes = good.encode();
        bytes[0] = 1;
        assert_eq!(
            RdmaCmRequest::parse(&bytes),
            Err(RdmaCmStatus::InvalidRecordFormat)
        );
        let zero = RdmaCmRequest { hrqsize: 0, ..good };
        assert_eq!(
            RdmaCmRequest::parse(&zero.encode()),
            Err(RdmaCmStatus::InvalidHrqSize)
        );
        let huge = RdmaCmRequest {
            hsqsize: 0xffff,
            ..good
        };
        assert_eq!(
            RdmaCmRequest::parse(&huge.encode()),
            Err(RdmaCmStatus::InvalidHsqSize)
        );
    }

    #[test]
    fn an_answer_that_is_short_or_of_another_format_is_none() {
        let (accept, reject) = (RdmaCmAccept { crqsize: 32 }, RdmaCmReject { status: 4 });
        assert_eq!(RdmaCmAccept::parse(&accept.encode()), Some(accept));
        assert_eq!(RdmaCmReject::parse(&reject.encode()), Some(reject));
        assert_eq!(RdmaCmAccept::parse(&accept.encode()[..4]), Some(accept));
        for len in 0..4 {
            assert_eq!(RdmaCmAccept::parse(&accept.encode()[..len]), None);
            assert_eq!(RdmaCmReject::parse(&reject.encode()[..len]), None);
        }
        assert_eq!(RdmaCmAccept::parse(&[1, 0, 32, 0]), None);
        assert_eq!(RdmaCmReject::parse(&[0, 1, 4, 0]), None);
    }
}
