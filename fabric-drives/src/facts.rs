//! What a target says of a namespace, and whether it is the same one as before.

use std::fmt;
use std::time::Duration;

use drives::BLOCK_BYTES;
use initiator::{Controller, Error, Namespace};
use nvme::identify::NamespaceDescriptor;
use nvme::reservation::{ONCS_RESERVATIONS, ReservationType};

/// ONCS bit 2: the controller has Dataset Management.
const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
/// RESCAP bit 0: reservations can survive a loss of power.
const RESCAP_PERSISTS: u8 = 1;
/// VWC bit 0: the controller has a volatile write cache.
const VWC_PRESENT: u8 = 1;

/// The identifiers of a namespace that no other one has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) uuid: Option<[u8; 16]>,
    nguid: Option<[u8; 16]>,
    eui64: Option<[u8; 8]>,
}

impl Identity {
    pub(crate) fn is_known(&self) -> bool {
        *self != Self::default()
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self {
                uuid: Some(uuid), ..
            } => write!(f, "UUID {}", uuid::Uuid::from_bytes(*uuid)),
            Self {
                nguid: Some(nguid), ..
            } => write!(f, "NGUID {:032x}", u128::from_be_bytes(*nguid)),
            Self {
                eui64: Some(eui64), ..
            } => write!(f, "EUI-64 {:016x}", u64::from_be_bytes(*eui64)),
            _ => f.write_str("no identifier"),
        }
    }
}

/// What does not change while a drive is open, and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) identity: Identity,
    /// Bytes in all.
    bytes: u64,
    lba_bytes: u32,
    /// Bytes of metadata that travel with each block.
    metadata_bytes: u16,
    /// Bytes that one command moves at most.
    pub(crate) max_transfer: usize,
    pub(crate) has_cache: bool,
    pub(crate) can_deallocate: bool,
    pub(crate) has_reservations: bool,
    /// What Register asks for: that reservations survive a loss of power, where that is possible.
    pub(crate) persists: Option<bool>,
    /// Command Quiesce Time, if the controller tells it.
    quiesce: Option<Duration>,
}

impl Facts {
    /// Asks the controller.
    ///
    /// # Errors
    /// It does not say.
    pub(crate) async fn ask(controller: &Controller, namespace: &Namespace) -> Result<Self, Error> {
        let (page, host) = (namespace.identify(), controller.identify());
        let is_set = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
        let mut identity = Identity {
            uuid: None,
            nguid: Some(page.nguid).filter(|nguid| is_set(nguid)),
            eui64: Some(page.eui64).filter(|eui64| is_set(eui64)),
        };
        for descriptor in namespace.identifiers().await? {
            match descriptor {
                NamespaceDescriptor::Uuid(uuid) if is_set(&uuid) => identity.uuid = Some(uuid),
                NamespaceDescriptor::Nguid(nguid) if is_set(&nguid) => identity.nguid = Some(nguid),
                NamespaceDescriptor::Eui64(eui64) if is_set(&eui64) => identity.eui64 = Some(eui64),
                _ => {}
            }
        }
        let write_exclusive = 1 << ReservationType::WriteExclusive.as_u8();
        let quiesce = Duration::from_millis(host.cqt.into());
        Ok(Self {
            identity,
            bytes: namespace.size_bytes(),
            lba_bytes: namespace.lba_bytes(),
            metadata_bytes: page.lba_format().map_or(0, |format| format.ms),
            max_transfer: controller.max_transfer_bytes(),
            has_cache: host.vwc & VWC_PRESENT != 0,
            can_deallocate: host.oncs & ONCS_DATASET_MANAGEMENT != 0,
            has_reservations: host.oncs & ONCS_RESERVATIONS != 0
                && page.rescap & write_exclusive != 0,
            persists: (page.rescap & RESCAP_PERSISTS != 0).then_some(true),
            quiesce: Some(quiesce).filter(|quiesce| !quiesce.is_zero()),
        })
    }

    /// For tests: of a namespace of a sled.
    #[cfg(test)]
    pub(crate) fn of_sled() -> Self {
        Self {
            identity: Identity::default(),
            bytes: 1 << 30,
            lba_bytes: 4096,
            metadata_bytes: 0,
            max_transfer: 1 << 20,
            has_cache: true,
            can_deallocate: true,
            has_reservations: true,
            persists: Some(true),
            quiesce: None,
        }
    }

    /// Blocks of a drive that lie in it whole.
    pub(crate) fn drive_blocks(&self) -> u64 {
        self.bytes / BLOCK_BYTES as u64
    }

    /// How long after the end of an association its commands may still happen: three times the Keep Alive Timeout, and the
    /// time that the controller needs to quiesce (NVMe Base 2.1, section 9.6, of TP4129). A controller that does not
    /// tell that time is given another Keep Alive Timeout, as Linux does.
    pub(crate) fn settled_after(&self, keep_alive: Duration) -> Duration {
        keep_alive * 3 + self.quiesce.unwrap_or(keep_alive)
    }

    /// Why a drive cannot be made of it.
    pub(crate) fn unusable(&self) -> Option<String> {
        if self.lba_bytes as usize > BLOCK_BYTES {
            let text = format!(
                "the namespace has blocks of {} bytes, and a drive is written in blocks of {BLOCK_BYTES}: format it with 512 \
                 or 4096",
                self.lba_bytes
            );
            return Some(text);
        }
        if self.metadata_bytes != 0 {
            let text = format!(
                "the namespace has {} bytes of metadata with each block, which this program does not write: format it \
                 without",
                self.metadata_bytes
            );
            return Some(text);
        }
        (self.max_transfer < BLOCK_BYTES)
            .then(|| "one command moves less than 4096 bytes there".to_owned())
    }

    /// Why what is found now is not what was opened.
    pub(crate) fn changed(&self, now: &Self) -> Option<String> {
        if self.identity != now.identity {
            return Some(format!(
                "another namespace is at this address now ({}) than the one that was opened ({}): nothing is written to it; \
                 put the right one back, or replace the drive",
                now.identity, self.identity
            ));
        }
        if (self.bytes, self.lba_bytes, self.metadata_bytes)
            != (now.bytes, now.lba_bytes, now.metadata_bytes)
        {
            return Some(format!(
                "the namespace has {} bytes in blocks of {} now, and had {} in blocks of {} when it was opened: nothing is \
                 written to it; undo that, or start the daemon again if it was made larger",
                now.bytes, now.lba_bytes, self.bytes, self.lba_bytes
            ));
        }
        if now.max_transfer < self.max_transfer
            || (now.has_cache && !self.has_cache)
            || now.has_reservations != self.has_reservations
        {
            let text = "the target can do less than when the drive was opened, or caches what it did not: start the daemon \
                        again, which takes it as it is";
            return Some(text.to_owned());
        }
        None
    }
}
