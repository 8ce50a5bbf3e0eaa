//! The latest events of a pool, in bounded space.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use nvme::features::Timestamp;
use nvme::log::{PersistentEvent, PersistentEventType, SmartLog, vendor_text};
use serde::{Deserialize, Serialize};

use super::{VERSION, Versioned};

/// Events that are kept.
const EVENTS_MAX: usize = 64;

/// Bytes of their data together. As a setting each takes at most four.
const DATA_BYTES_MAX: usize = 12 << 10;

/// The code of our only kind of vendor specific event.
const WARNING_CODE: u16 = 1;

/// Bytes of a firmware revision.
const REVISION_BYTES: usize = 8;

/// The latest events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Events {
    version: u32,
    /// Rises with every event.
    generation: u16,
    /// The latest first.
    events: VecDeque<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Event {
    kind: u8,
    /// Since 1970.
    milliseconds: u64,
    data: Vec<u8>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            version: VERSION,
            generation: 0,
            events: VecDeque::new(),
        }
    }
}

impl Versioned for Events {
    fn version(&self) -> u32 {
        self.version
    }
}

/// The time, as log pages have it.
pub(crate) fn timestamp(milliseconds: u64) -> u64 {
    let time = Timestamp {
        milliseconds,
        may_have_stopped: false,
        set_by_host: false,
    };
    u64::from_le_bytes(time.encode())
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

impl Events {
    /// The daemon serves the pool.
    pub(super) fn power_on(&mut self) {
        // The firmware's revision; no controller was reset, there is none yet.
        let revision = crate::VERSION.bytes().chain(std::iter::repeat(b' '));
        let data = revision.take(REVISION_BYTES).collect();
        self.add(PersistentEventType::PowerOn, data);
    }

    /// The SMART log as it is.
    pub(super) fn smart(&mut self, log: &SmartLog) {
        self.add(PersistentEventType::SmartSnapshot, log.encode().to_vec());
    }

    /// A warning.
    pub(super) fn text(&mut self, text: &str) {
        let data = vendor_text(WARNING_CODE, text);
        self.add(PersistentEventType::VendorSpecific, data);
    }

    fn add(&mut self, kind: PersistentEventType, data: Vec<u8>) {
        self.generation = self.generation.wrapping_add(1);
        self.events.push_front(Event {
            kind: kind.as_u8(),
            milliseconds: now_ms(),
            data,
        });
        while self.events.len() > EVENTS_MAX || self.data_bytes() > DATA_BYTES_MAX {
            self.events.pop_back();
        }
    }

    fn data_bytes(&self) -> usize {
        self.events.iter().map(|event| event.data.len()).sum()
    }

    pub(crate) fn generation(&self) -> u16 {
        self.generation
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// All of them as the log page has them, without its header.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for event in &self.events {
            let length = u16::try_from(event.data.len()).unwrap_or(u16::MAX);
            let header = PersistentEvent::new(event.kind, timestamp(event.milliseconds), length);
            bytes.extend_from_slice(&header.encode());
            bytes.extend_from_slice(&event.data[..usize::from(length)]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept_in_bounded_space() {
        let mut events = Events::default();
        for round in 0..100 {
            events.smart(&SmartLog::default());
            events.text(&format!("round {round}"));
            assert!(events.len() <= EVENTS_MAX && events.data_bytes() <= DATA_BYTES_MAX);
        }
        assert_eq!(events.generation(), 200);
        assert!(events.len() > 40, "{}", events.len());
        let page = events.encode();
        let first = PersistentEvent::decode(&page).expect("an event");
        assert_eq!((first.kind, usize::from(first.length)), (0xde, 6 + 8));
        assert!(page[24..].starts_with(b"\x01\0\x02\0\x08\0round 99"));
        for _ in 0..100 {
            events.text(&"long ".repeat(100));
        }
        let json = serde_json::to_vec(&events).expect("a text");
        assert!(json.len() < 64 << 10, "{} bytes", json.len());
        let again: Events = serde_json::from_slice(&json).expect("the same");
        assert_eq!(again, events);
    }
}
