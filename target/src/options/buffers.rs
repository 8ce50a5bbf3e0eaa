//! What memory for data is.

use reactor::{MAX_BUFFER_BYTES, SharedMemory, SharedPages};
use subsystem::errors::Failure;

/// Who can use the memory for data between hosts and drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BufferMemory {
    /// This process alone.
    #[default]
    Private,
    /// Servers of vhost-user drives too.
    Shared,
    /// These too, on huge pages.
    Huge,
}

/// The buffers of one reactor.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    pub(crate) bytes: usize,
    /// That of all reactors, if it is shared.
    pub(crate) memory: Option<SharedMemory>,
}

impl From<usize> for Buffers {
    /// So many bytes of private memory.
    fn from(bytes: usize) -> Self {
        Self {
            bytes,
            memory: None,
        }
    }
}

impl BufferMemory {
    /// The buffers of each of so many reactors with so many bytes together, which are rounded up.
    ///
    /// # Errors
    /// The memory is to be shared, and the system has not so much; or nobody can address so much.
    pub(crate) fn of_each(self, bytes: u64, reactors: usize) -> Result<Buffers, Failure> {
        let each = usize::try_from(bytes)
            .ok()
            .map(|bytes| bytes / reactors)
            .and_then(|each| each.max(1).checked_next_multiple_of(MAX_BUFFER_BYTES));
        let all = each.and_then(|each| each.checked_mul(reactors));
        let (Some(each), Some(all)) = (each, all) else {
            let text = "--buffers is more than this machine can address: name less";
            return Err(Failure::invalid(text));
        };
        let pages = match self {
            Self::Private => None,
            Self::Shared => Some(SharedPages::Usual),
            Self::Huge => Some(SharedPages::Huge),
        };
        let memory = pages.map(|pages| SharedMemory::new(all, pages)).transpose();
        let memory = memory.map_err(|error| {
            Failure::unavailable(format!("--buffers with --buffer-memory: {error}"))
        })?;
        Ok(Buffers {
            bytes: each,
            memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reactors_share_all_of_the_memory_and_too_much_of_it_is_refused() {
        let private = BufferMemory::Private.of_each(5 << 20, 2).expect("buffers");
        assert_eq!(private.bytes, 4 << 20);
        assert!(private.memory.is_none());
        let shared = BufferMemory::Shared.of_each(5 << 20, 2).expect("buffers");
        let memory = shared.memory.as_ref().expect("it is shared");
        assert_eq!((shared.bytes, memory.bytes()), (4 << 20, 8 << 20));
        BufferMemory::Shared
            .of_each(u64::MAX, 1)
            .expect_err("too much");
        let error = BufferMemory::Huge
            .of_each(1 << 50, 1)
            .expect_err("too much");
        assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
    }
}
