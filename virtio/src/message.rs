//! The messages of vhost-user, without the socket.
//!
//! Guarantee: any bytes are a message or an error.

use std::io;

/// Bytes of a message's header.
pub(crate) const HEADER_BYTES: usize = 12;

/// The longest payload that is taken.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 4096;

/// Bits 0 and 1 of the flags: the version of the protocol.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
/// It answers a request.
const REPLY: u32 = 1 << 2;
/// Who sent it wants to know what came of it.
const NEED_REPLY: u32 = 1 << 3;

/// Protocol features (`VHOST_USER_PROTOCOL_F_`).
pub(crate) mod protocol {
    pub(crate) const MQ: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    pub(crate) const BACKEND_REQ: u64 = 1 << 5;
    pub(crate) const CONFIG: u64 = 1 << 9;
    pub(crate) const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub(crate) const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// All that are offered.
    pub(crate) const OFFERED: u64 =
        MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | CONFIGURE_MEM_SLOTS;
}

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, the one message that we begin.
const CONFIG_CHANGE: u32 = 2;

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) request: u32,
    flags: u32,
    pub(crate) len: usize,
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> io::Result<Self> {
        let mut words = Words(bytes);
        let (request, flags, len) = (words.u32()?, words.u32()?, words.u32()? as usize);
        if flags & VERSION_MASK != VERSION {
            return Err(invalid("another version of the protocol"));
        }
        if flags & REPLY != 0 {
            return Err(invalid("an answer to what was not asked"));
        }
        if len > PAYLOAD_BYTES_MAX {
            return Err(invalid("a message that is too long"));
        }
        Ok(Self {
            request,
            flags,
            len,
        })
    }

    pub(crate) fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

fn frame(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    for word in [request, VERSION | flags, payload.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// The bytes of an answer.
pub(crate) fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
    frame(request, REPLY, payload)
}

/// The bytes of the message that the configuration changed.
pub(crate) fn config_changed() -> Vec<u8> {
    frame(CONFIG_CHANGE, 0, &[])
}

/// Takes numbers off a payload.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (first, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or_else(|| invalid("a message that is too short"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> io::Result<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Memory that the front-end shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Where the guest has it.
    pub(crate) guest: u64,
    pub(crate) len: u64,
    /// Where the front-end has it.
    pub(crate) user: u64,
    pub(crate) file_offset: u64,
}

impl Region {
    fn parse(words: &mut Words<'_>) -> io::Result<Self> {
        let region = Self {
            guest: words.u64()?,
            len: words.u64()?,
            user: words.u64()?,
            file_offset: words.u64()?,
        };
        let end = region.guest.checked_add(region.len);
        match end.and(region.user.checked_add(region.len)) {
            Some(_) => Ok(region),
            None => Err(invalid("a region beyond the end of all addresses")),
        }
    }
}

/// The memory of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InflightArea {
    pub(crate) len: u64,
    pub(crate) offset: u64,
    pub(crate) queues: u16,
    pub(crate) queue_size: u16,
}

impl InflightArea {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(20);
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.queues.to_le_bytes());
        bytes.extend(self.queue_size.to_le_bytes());
        bytes
    }
}

/// Where a ring's parts are, in addresses of the front-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingAddresses {
    pub(crate) descriptors: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
}

/// What the front-end asks for. Descriptors come beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<Region>),
    SetVringNum(u32, u32),
    SetVringAddr(u32, RingAddresses),
    SetVringBase(u32, u32),
    GetVringBase(u32),
    /// With whether a descriptor comes with it.
    SetVringKick(u32, bool),
    SetVringCall(u32, bool),
    SetVringErr(u32, bool),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable(u32, bool),
    SetBackendReqFd,
    /// Offset and length.
    GetConfig(u32, u32),
    SetConfig(u32, Vec<u8>),
    GetInflightFd(InflightArea),
    SetInflightFd(InflightArea),
    GetMaxMemSlots,
    AddMemReg(Region),
    RemMemReg(Region),
}

/// Of the number of a queue that comes with a descriptor, the bit that says that none does.
const NO_DESCRIPTOR: u64 = 1 << 8;

impl Request {
    pub(crate) fn parse(request: u32, payload: &[u8]) -> io::Result<Self> {
        let words = &mut Words(payload);
        let descriptor = |words: &mut Words<'_>| {
            let value = words.u64()?;
            io::Result::Ok(((value & 0xff) as u32, value & NO_DESCRIPTOR == 0))
        };
        let parsed = match request {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(words.u64()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => {
                let count = words.u32()? as usize;
                words.u32()?;
                if count > crate::memory::REGIONS_MAX {
                    return Err(invalid("too many regions of memory"));
                }
                let regions = (0..count).map(|_| Region::parse(words));
                let regions = regions.collect::<io::Result<_>>()?;
                // User-mode Linux sends room for two regions whether it has two or one.
                words.0 = &[];
                Self::SetMemTable(regions)
            }
            8 => Self::SetVringNum(words.u32()?, words.u32()?),
            9 => {
                let index = words.u32()?;
                // Bit 0 asks for a log of what is written, which was not offered.
                let flags = words.u32()?;
                if flags & 1 != 0 {
                    return Err(invalid("a log that was not offered"));
                }
                let addresses = RingAddresses {
                    descriptors: words.u64()?,
                    used: words.u64()?,
                    available: words.u64()?,
                };
                words.u64()?;
                Self::SetVringAddr(index, addresses)
            }
            10 => Self::SetVringBase(words.u32()?, words.u32()?),
            11 => {
                let index = words.u32()?;
                words.u32()?;
                Self::GetVringBase(index)
            }
            12 => {
                let (index, has) = descriptor(words)?;
                Self::SetVringKick(index, has)
            }
            13 => {
                let (index, has) = descriptor(words)?;
                Self::SetVringCall(index, has)
            }
            14 => {
                let (index, has) = descriptor(words)?;
                Self::SetVringErr(index, has)
            }
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(words.u64()?),
            17 => Self::GetQueueNum,
            18 => Self::SetVringEnable(words.u32()?, words.u32()? == 1),
            21 => Self::SetBackendReqFd,
            24 => {
                let (offset, len) = (words.u32()?, words.u32()?);
                words.u32()?;
                words.0 = &[];
                Self::GetConfig(offset, len)
            }
            25 => {
                let (offset, len) = (words.u32()?, words.u32()? as usize);
                words.u32()?;
                let data = words.0.get(..len);
                let data = data.ok_or_else(|| invalid("a message that is too short"))?;
                words.0 = &[];
                Self::SetConfig(offset, data.to_vec())
            }
            31 | 32 => {
                let area = InflightArea {
                    len: words.u64()?,
                    offset: words.u64()?,
                    queues: words.u16()?,
                    queue_size: words.u16()?,
                };
                // Front-ends send the structure with what their compiler adds to it.
                words.0 = &[];
                match request {
                    31 => Self::GetInflightFd(area),
                    _ => Self::SetInflightFd(area),
                }
            }
            36 => Self::GetMaxMemSlots,
            37 | 38 => {
                words.u64()?;
                let region = Region::parse(words)?;
                match request {
                    37 => Self::AddMemReg(region),
                    _ => Self::RemMemReg(region),
                }
            }
            _ => return Err(invalid("a request that was not offered")),
        };
        match words.0.is_empty() {
            true => Ok(parsed),
            false => Err(invalid("a message that is too long")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_may_have_room_for_more_memory_than_it_names() {
        let one = [0_u64, 4096, 0x7000_0000, 0].map(u64::to_le_bytes).concat();
        let table = [&1_u64.to_le_bytes()[..], &one, &[0; 32]].concat();
        let region = Region {
            guest: 0,
            len: 4096,
            user: 0x7000_0000,
            file_offset: 0,
        };
        let parsed = Request::parse(5, &table).expect("a table");
        assert_eq!(parsed, Request::SetMemTable(vec![region]));
        assert!(Request::parse(5, &table[..39]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(
            request in 0u32..50, payload in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            if let Ok(Request::SetMemTable(regions)) = Request::parse(request, &payload) {
                prop_assert!(regions.len() * 32 + 8 <= payload.len());
            }
        }

        #[test]
        fn any_header_is_checked(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert!(header.len <= PAYLOAD_BYTES_MAX);
            }
        }
    }
}
