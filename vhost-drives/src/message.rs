//! The messages of vhost-user that a front end sends, and the answers that it takes, without the socket.
//!
//! Guarantee: any bytes are an answer or an error.
//!
//! Numbers are those of QEMU's docs/interop/vhost-user.rst. They are little-endian, as this machine is.

/// Bytes of a message's header.
pub(crate) const HEADER_BYTES: usize = 12;

/// The longest payload of an answer that is taken.
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
    pub(crate) const CONFIG: u64 = 1 << 9;
    /// All that this front end uses.
    pub(crate) const USED: u64 = MQ | REPLY_ACK | CONFIG;
}

/// Where a ring's parts are, in addresses of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingAddresses {
    pub(crate) descriptors: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
}

/// Regions of one table at most: what every server takes (`VHOST_MEMORY_BASELINE_NREGIONS`).
pub(crate) const REGIONS_MAX: usize = 8;

/// A whole file as a region of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    /// Where it begins in the addresses of a guest and of this side alike.
    pub(crate) base: u64,
    /// Its bytes.
    pub(crate) len: u64,
}

/// At most [`REGIONS_MAX`] of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Regions {
    all: [Region; REGIONS_MAX],
    count: usize,
}

impl Regions {
    /// The first so many, as far as there is room.
    pub(crate) fn new(regions: impl Iterator<Item = Region>) -> Self {
        let mut these = Self::default();
        for (place, region) in these.all.iter_mut().zip(regions) {
            *place = region;
            these.count += 1;
        }
        these
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.all.iter().take(self.count)
    }
}

/// What is asked for. Descriptors come beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    /// The regions of memory that are shared; their files come beside it, in this order.
    SetMemTable(Regions),
    SetVringNum {
        queue: u32,
        entries: u32,
    },
    SetVringAddr {
        queue: u32,
        at: RingAddresses,
    },
    SetVringBase {
        queue: u32,
        base: u32,
    },
    GetVringBase {
        queue: u32,
    },
    SetVringKick {
        queue: u32,
    },
    SetVringCall {
        queue: u32,
    },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable {
        queue: u32,
    },
    /// So many bytes from the start.
    GetConfig {
        bytes: u32,
    },
}

/// What a request is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing, or whether it worked where that is asked for.
    Ack,
    Number,
    /// Of a queue.
    State,
    Config,
}

impl Request {
    /// Its number and its name in the specification.
    fn code(&self) -> (u32, &'static str) {
        match self {
            Self::GetFeatures => (1, "GET_FEATURES"),
            Self::SetFeatures(_) => (2, "SET_FEATURES"),
            Self::SetOwner => (3, "SET_OWNER"),
            Self::SetMemTable(_) => (5, "SET_MEM_TABLE"),
            Self::SetVringNum { .. } => (8, "SET_VRING_NUM"),
            Self::SetVringAddr { .. } => (9, "SET_VRING_ADDR"),
            Self::SetVringBase { .. } => (10, "SET_VRING_BASE"),
            Self::GetVringBase { .. } => (11, "GET_VRING_BASE"),
            Self::SetVringKick { .. } => (12, "SET_VRING_KICK"),
            Self::SetVringCall { .. } => (13, "SET_VRING_CALL"),
            Self::GetProtocolFeatures => (15, "GET_PROTOCOL_FEATURES"),
            Self::SetProtocolFeatures(_) => (16, "SET_PROTOCOL_FEATURES"),
            Self::GetQueueNum => (17, "GET_QUEUE_NUM"),
            Self::SetVringEnable { .. } => (18, "SET_VRING_ENABLE"),
            Self::GetConfig { .. } => (24, "GET_CONFIG"),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.code().1
    }

    pub(crate) fn answer(&self) -> Answer {
        match self {
            Self::GetFeatures | Self::GetProtocolFeatures | Self::GetQueueNum => Answer::Number,
            Self::GetVringBase { .. } => Answer::State,
            Self::GetConfig { .. } => Answer::Config,
            _ => Answer::Ack,
        }
    }

    fn payload(&self) -> Vec<u8> {
        let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let pair = |one: u32, other: u32| [one.to_le_bytes(), other.to_le_bytes()].concat();
        match *self {
            Self::GetFeatures | Self::SetOwner | Self::GetProtocolFeatures | Self::GetQueueNum => {
                Vec::new()
            }
            Self::SetFeatures(value) | Self::SetProtocolFeatures(value) => numbers(&[value]),
            // Bit 8, which would say that no descriptor comes with it, is not set.
            Self::SetVringKick { queue } | Self::SetVringCall { queue } => {
                numbers(&[u64::from(queue)])
            }
            Self::SetMemTable(regions) => {
                // Their count and padding; of each where a guest has it, its bytes, where this side has it, its offset in the file.
                let mut payload: Vec<u8> = numbers(&[regions.count as u64]);
                for region in regions.iter() {
                    payload.extend::<Vec<u8>>(numbers(&[region.base, region.len, region.base, 0]));
                }
                payload
            }
            Self::SetVringNum { queue, entries } => pair(queue, entries),
            Self::SetVringBase { queue, base } => pair(queue, base),
            Self::GetVringBase { queue } => pair(queue, 0),
            Self::SetVringEnable { queue } => pair(queue, 1),
            Self::SetVringAddr { queue, at } => {
                // No flags and no log.
                let queue = u64::from(queue);
                numbers(&[queue, at.descriptors, at.used, at.available, 0])
            }
            Self::GetConfig { bytes } => {
                let mut payload = vec![0; 12 + bytes as usize];
                payload[4..8].copy_from_slice(&bytes.to_le_bytes());
                payload
            }
        }
    }

    /// Its bytes; `wants_ack` asks for an answer where there is none otherwise.
    pub(crate) fn encode(&self, wants_ack: bool) -> Vec<u8> {
        let payload = self.payload();
        let flags = match wants_ack && self.answer() == Answer::Ack {
            true => VERSION | NEED_REPLY,
            false => VERSION,
        };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        for word in [self.code().0, flags, payload.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(payload);
        bytes
    }

    /// Bytes of the payload of the answer with this header.
    ///
    /// # Errors
    /// It answers another request, or is longer than any answer.
    pub(crate) fn answer_bytes(&self, header: &[u8; HEADER_BYTES]) -> Result<usize, String> {
        let code = word(header, 0);
        let flags = word(header, 4);
        let len = word(header, 8) as usize;
        if code != self.code().0 || flags & REPLY == 0 {
            return Err(format!("it is message {code} with flags {flags:#x}"));
        }
        if flags & VERSION_MASK != VERSION {
            return Err("it has another version of the protocol".to_owned());
        }
        if len > PAYLOAD_BYTES_MAX {
            return Err(format!("it has {len} bytes"));
        }
        Ok(len)
    }

    /// The number that an answer has: of [`Answer::Ack`] 0 for success, of [`Answer::State`] that of this queue.
    ///
    /// # Errors
    /// The answer has another length, or is for another queue.
    pub(crate) fn number(&self, payload: &[u8]) -> Result<u64, String> {
        let Ok(bytes) = <[u8; 8]>::try_from(payload) else {
            return Err(format!("it has {} bytes in place of 8", payload.len()));
        };
        if let Self::GetVringBase { queue } = self {
            let other = word(&bytes, 0);
            if other != *queue {
                return Err(format!("it is for queue {other}"));
            }
            return Ok(u64::from(word(&bytes, 4)));
        }
        Ok(u64::from_le_bytes(bytes))
    }
}

/// The configuration space that [`Request::GetConfig`] is answered with.
///
/// # Errors
/// It has another length; that of an error is 0.
pub(crate) fn config<const N: usize>(payload: &[u8]) -> Result<[u8; N], String> {
    let space = payload
        .get(12..)
        .and_then(|space| <[u8; N]>::try_from(space).ok());
    match space {
        Some(space) if word(payload, 4) as usize == N => Ok(space),
        _ => Err(format!(
            "it has {} bytes in place of {}",
            payload.len(),
            N + 12
        )),
    }
}

/// Four bytes at an offset that the caller has checked; 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply(code: u32, flags: u32, len: u32) -> [u8; HEADER_BYTES] {
        let words = [code, flags, len].map(u32::to_le_bytes).concat();
        words.try_into().expect("three words")
    }

    #[test]
    fn requests_have_the_bytes_of_the_specification() {
        let regions = [(0x1000, 0x2000), (0x8000, 0x1000)];
        let regions = regions.map(|(base, len)| Region { base, len });
        let table = Request::SetMemTable(Regions::new(regions.into_iter()));
        let bytes = table.encode(true);
        assert_eq!(bytes[..12], [5, 0, 0, 0, 9, 0, 0, 0, 72, 0, 0, 0]);
        assert_eq!(bytes.len(), 84);
        let words = [2, 0x1000, 0x2000, 0x1000, 0, 0x8000, 0x1000, 0x8000, 0];
        let expected: Vec<u8> = words
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        assert_eq!(bytes[12..], expected);
        let many = Regions::new(std::iter::repeat_n(Region::default(), 9));
        assert_eq!(many.iter().count(), REGIONS_MAX);
        // A request with an answer of its own asks for no other.
        assert_eq!(Request::GetFeatures.encode(true)[4], 1);
        let config = Request::GetConfig { bytes: 60 }.encode(false);
        assert_eq!(config.len(), 12 + 12 + 60);
    }

    #[test]
    fn answers_to_something_else_and_of_other_lengths_are_refused() {
        let asked = Request::GetVringBase { queue: 2 };
        assert_eq!(asked.answer_bytes(&reply(11, 5, 8)), Ok(8));
        for header in [
            reply(1, 5, 8),
            reply(11, 1, 8),
            reply(11, 6, 8),
            reply(11, 5, 5000),
        ] {
            asked.answer_bytes(&header).expect_err("no answer to it");
        }
        let state = |queue: u32| [queue.to_le_bytes(), 7_u32.to_le_bytes()].concat();
        assert_eq!(asked.number(&state(2)), Ok(7));
        asked.number(&state(1)).expect_err("another queue");
        asked.number(&[0; 7]).expect_err("too short");
        config::<60>(&[0; 12]).expect_err("an error");
        config::<60>(&[0; 73]).expect_err("too long");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_an_error(
            header: [u8; HEADER_BYTES], payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let asked = Request::GetVringBase { queue: 0 };
            if let Ok(len) = asked.answer_bytes(&header) {
                prop_assert!(len <= PAYLOAD_BYTES_MAX);
            }
            let _ = asked.number(&payload);
            let _ = config::<60>(&payload);
        }
    }
}
