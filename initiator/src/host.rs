//! Who connects.

use nvme::Nqn;
use uuid::Uuid;

/// A host's name and identifier. Both have to be the same on all queues of an association.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The host's NQN.
    pub nqn: Nqn,
    /// The 16-byte identifier.
    pub id: [u8; 16],
}

impl Host {
    /// A host that nobody has seen before, named after a random UUID (NVMe Base 2.0, section 4.5.1).
    ///
    /// # Panics
    /// Never: the name is well formed by construction.
    #[must_use]
    pub fn generate() -> Self {
        let uuid = Uuid::new_v4();
        let nqn = Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}"))
            .expect("a prefix and a UUID are a name");
        Self {
            nqn,
            id: uuid.into_bytes(),
        }
    }

    /// A host of that name, with a new identifier; or one that nobody has seen before.
    #[must_use]
    pub fn of(nqn: Option<&Nqn>) -> Self {
        let host = Self::generate();
        match nqn {
            Some(nqn) => Self {
                nqn: nqn.clone(),
                ..host
            },
            None => host,
        }
    }
}
