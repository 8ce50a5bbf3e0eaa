//! Buffers whose memory the server has: it reads and writes the data where they lie, and nothing is copied.
//!
//! Guarantee: no such buffer is used by anybody else before the server has answered all commands that have it, or is done with
//! their connection; also if the transfer is dropped, or ends without an answer. Only the end of the reactor ends this before.
//!
//! A server that answers a command and then goes on with its data breaks this. There is no way to notice: who shares buffers
//! with a server trusts it.

use std::cell::RefCell;
use std::sync::Arc;

use reactor::{Buffer, BufferPool};

use crate::fencing;
use crate::queue::Loan;
use crate::shared::Shared;

/// Buffers of a transfer.
pub(crate) struct Lent<'a, T: 'static> {
    shared: &'a Arc<Shared>,
    /// Nothing, when it was given back.
    what: Option<T>,
    loan: Loan,
}

impl<'a, T: 'static> Lent<'a, T> {
    pub(crate) fn new(shared: &'a Arc<Shared>, what: T) -> Self {
        Self {
            shared,
            what: Some(what),
            loan: Loan::default(),
        }
    }

    pub(crate) fn get(&self) -> &T {
        // `give_back` alone takes it, with this.
        self.what.as_ref().expect("it was not given back")
    }

    /// For each command that has it.
    pub(crate) fn loan(&self) -> &Loan {
        &self.loan
    }

    /// Whether a command still has it. Who sees that none has sees what the server wrote.
    fn is_in_use(&mut self) -> bool {
        Arc::get_mut(&mut self.loan).is_none()
    }
}

/// One buffer, which is written, or read to.
pub(crate) trait OneBuffer: 'static {
    fn with<R>(&self, look: impl FnOnce(&Buffer) -> R) -> R;
    fn into_buffer(self) -> Buffer;
}

impl OneBuffer for Buffer {
    fn with<R>(&self, look: impl FnOnce(&Buffer) -> R) -> R {
        look(self)
    }

    fn into_buffer(self) -> Buffer {
        self
    }
}

impl OneBuffer for RefCell<Buffer> {
    fn with<R>(&self, look: impl FnOnce(&Buffer) -> R) -> R {
        look(&self.borrow())
    }

    fn into_buffer(self) -> Buffer {
        self.into_inner()
    }
}

impl<T: OneBuffer> Lent<'_, T> {
    /// The buffer; or another one with the same content, if the server may still use it.
    pub(crate) async fn give_back(mut self) -> Buffer {
        if !self.is_in_use()
            && let Some(what) = self.what.take()
        {
            return what.into_buffer();
        }
        let (bytes, pool) = self.get().with(|buffer| (buffer.capacity(), buffer.pool()));
        // It is of a pool of its own: who waited for memory of the buffer's pool could wait for what waits as well.
        let own = BufferPool::new(bytes).ok();
        let mut copy = match own.and_then(|own| own.try_alloc(bytes)) {
            Some(copy) => copy,
            // The system has no memory. Then it takes as long as it takes.
            None => pool.alloc(bytes).await,
        };
        self.get().with(|buffer| {
            copy.set_len(buffer.len());
            copy.copy_from_slice(buffer);
        });
        copy
    }
}

impl<T: 'static> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        if !self.is_in_use() || reactor::current().is_none() {
            return;
        }
        let Some(what) = self.what.take() else { return };
        let (mut loan, drive) = (self.loan.clone(), self.shared.name.clone());
        self.loan = Loan::default();
        reactor::spawn(async move {
            while Arc::get_mut(&mut loan).is_none() {
                fencing::look_again(&drive).await;
            }
            drop(what);
        })
        .detach();
    }
}
