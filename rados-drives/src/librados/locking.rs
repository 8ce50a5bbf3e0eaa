//! Requests of the class `lock` of Ceph's OSDs, by which a drive's owner has its lease.
//!
//! librados has calls for them (`rados_lock_exclusive`, `rados_unlock`, `rados_break_lock`). These take no flags, so they wait as long as the
//! cluster is full, and a lease that is not renewed ends. An operation that calls the class takes
//! `LIBRADOS_OPERATION_FULL_TRY`: a lock is an attribute of an object that is there, for which a full cluster has room.
//!
//! The encoding is that of `src/cls/lock/cls_lock_ops.h` and `src/include/encoding.h` of Ceph: each request begins with its version, the oldest
//! version that can read it, and the bytes that follow; numbers are little-endian; a text has its length first.

use std::ffi::CStr;
use std::time::Duration;

use crate::client::{Errno, Holder};

/// The name of the lock on a header.
pub(super) const LOCK: &CStr = c"onefold";

/// The class.
pub(super) const CLASS: &CStr = c"lock";

/// `ClsLockType::EXCLUSIVE`
const EXCLUSIVE: u8 = 1;

/// `LOCK_FLAG_MAY_RENEW`
const MAY_RENEW: u8 = 1;

/// `CEPH_ENTITY_TYPE_CLIENT`
const CLIENT: u8 = 8;

/// A call of the class.
pub(super) struct Request {
    pub(super) method: &'static CStr,
    pub(super) input: Vec<u8>,
}

impl Request {
    fn new(method: &'static CStr, fields: &[&[u8]]) -> Self {
        let fields = fields.concat();
        let mut input = vec![1, 1];
        input.extend((fields.len() as u32).to_le_bytes());
        input.extend(fields);
        Self { method, input }
    }

    /// Takes the lock, or renews it, for so long.
    pub(super) fn lock(cookie: &str, lease: Duration) -> Self {
        let seconds = u32::try_from(lease.as_secs()).unwrap_or(u32::MAX);
        let (no_tag, no_description) = (text(b""), text(b""));
        Self::new(
            c"lock",
            &[
                &text(LOCK.to_bytes()),
                &[EXCLUSIVE],
                &text(cookie.as_bytes()),
                &no_tag,
                &no_description,
                &seconds.to_le_bytes(),
                &lease.subsec_nanos().to_le_bytes(),
                &[MAY_RENEW],
            ],
        )
    }

    /// Gives it back.
    pub(super) fn unlock(cookie: &str) -> Self {
        Self::new(
            c"unlock",
            &[&text(LOCK.to_bytes()), &text(cookie.as_bytes())],
        )
    }

    /// Takes it away from another client.
    ///
    /// # Errors
    /// The holder is no client.
    pub(super) fn break_lock(holder: &Holder) -> Result<Self, Errno> {
        let number = holder.client.strip_prefix("client.");
        let number = number.and_then(|number| number.parse::<i64>().ok());
        let number = number.ok_or(Errno(libc::EINVAL))?;
        Ok(Self::new(
            c"break_lock",
            &[
                &text(LOCK.to_bytes()),
                &[CLIENT],
                &number.to_le_bytes(),
                &text(holder.cookie.as_bytes()),
            ],
        ))
    }
}

fn text(bytes: &[u8]) -> Vec<u8> {
    let mut text = (bytes.len() as u32).to_le_bytes().to_vec();
    text.extend(bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_encoded_as_the_class_reads_them() {
        let lock = Request::lock("one", Duration::from_millis(1500));
        let mut wanted = vec![1, 1, 0, 0, 0, 0];
        wanted.extend(b"\x07\0\0\0onefold\x01\x03\0\0\0one\0\0\0\0\0\0\0\0");
        wanted.extend([1, 0, 0, 0]);
        wanted.extend(500_000_000_u32.to_le_bytes());
        wanted.push(1);
        wanted[2] = (wanted.len() - 6) as u8;
        assert_eq!(lock.input, wanted);
        let unlock = Request::unlock("one");
        assert_eq!(
            unlock.input,
            b"\x01\x01\x12\0\0\0\x07\0\0\0onefold\x03\0\0\0one"
        );
        let mut holder = Holder {
            client: "client.4123".to_owned(),
            cookie: "one".to_owned(),
            address: String::new(),
        };
        let broken = Request::break_lock(&holder).expect("a client");
        let mut wanted = b"\x01\x01\x1b\0\0\0\x07\0\0\0onefold\x08".to_vec();
        wanted.extend(4123_i64.to_le_bytes());
        wanted.extend(b"\x03\0\0\0one");
        assert_eq!(broken.input, wanted);
        holder.client = "mds.1".to_owned();
        assert!(Request::break_lock(&holder).is_err());
    }
}
