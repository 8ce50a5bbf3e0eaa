//! Settings: small named values that are kept with the pool, for whoever serves it.
//!
//! Guarantees: what one record changes is changed together; a decoded change names each key once, in order,
//! and keeps the bounds below.

use std::collections::BTreeMap;

use crate::codec::{CodecError, Reader};

/// The longest key of a setting, in bytes of printable ASCII.
pub const SETTING_KEY_BYTES_MAX: usize = 512;

/// The longest value of a setting, in bytes.
pub const SETTING_VALUE_BYTES_MAX: usize = 64 << 10;

/// All that one record changes, in bytes as it is encoded: below what a journal record may have.
pub const SETTING_CHANGES_BYTES_MAX: usize = 256 << 10;

/// The setting that says what drives hold of the store: generation, number and end of the last change, little endian. Who changes
/// the store in the folder alone takes it away: then all is copied to the drives anew.
pub(crate) const ON_DRIVES_KEY: &str = "meta.on-drives";

/// The setting of a pool that other nodes may take over by themselves, from the drives that they reach: who opens it has to reach half
/// of the drives that hold the metadata.
pub const SHARED_KEY: &str = "meta.shared";

/// What becomes of settings, by key: a value, or `None` for one that goes.
pub type SettingChanges = BTreeMap<String, Option<Vec<u8>>>;

/// Whether this can be the key of a setting.
#[must_use]
pub fn is_setting_key(key: &str) -> bool {
    (1..=SETTING_KEY_BYTES_MAX).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Bytes that [`put_settings`] writes.
pub(crate) fn settings_len(changes: &SettingChanges) -> usize {
    let one = |(key, value): (&String, &Option<Vec<u8>>)| {
        2 + key.len() + 1 + value.as_ref().map_or(0, |value| 4 + value.len())
    };
    4 + changes.iter().map(one).sum::<usize>()
}

/// Number of changes u32; of each the key (length u16, bytes), whether there is a value u8, and the value
/// (length u32, bytes).
pub(crate) fn put_settings(out: &mut Vec<u8>, changes: &SettingChanges) {
    out.extend_from_slice(&(changes.len() as u32).to_le_bytes());
    for (key, value) in changes {
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(key.as_bytes());
        out.push(u8::from(value.is_some()));
        if let Some(value) = value {
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value);
        }
    }
}

pub(crate) fn take_settings(reader: &mut Reader<'_>) -> Result<SettingChanges, CodecError> {
    if reader.remaining() > SETTING_CHANGES_BYTES_MAX {
        return Err(CodecError::Field("length"));
    }
    take_changes(reader)
}

/// As [`take_settings`], of the changes of many records together.
pub(crate) fn take_changes(reader: &mut Reader<'_>) -> Result<SettingChanges, CodecError> {
    let mut changes = SettingChanges::new();
    for _ in 0..reader.u32()? {
        let len = usize::from(u16::from_le_bytes(reader.array()?));
        let key = take_key(reader.bytes(len)?)?;
        if changes
            .last_key_value()
            .is_some_and(|(last, _)| *last >= key)
        {
            return Err(CodecError::Field("order of keys"));
        }
        let value = match reader.u8()? {
            0 => None,
            1 => {
                let len = reader.u32()? as usize;
                if len > SETTING_VALUE_BYTES_MAX {
                    return Err(CodecError::Field("length of a value"));
                }
                Some(reader.bytes(len)?.to_vec())
            }
            _ => return Err(CodecError::Field("flag of a value")),
        };
        changes.insert(key, value);
    }
    Ok(changes)
}

/// The key of a setting.
pub(crate) fn take_key(bytes: &[u8]) -> Result<String, CodecError> {
    let key = std::str::from_utf8(bytes)
        .ok()
        .filter(|key| is_setting_key(key));
    key.map(str::to_owned)
        .ok_or(CodecError::Field("key of a setting"))
}
