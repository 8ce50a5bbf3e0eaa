//! The text in which secrets are exchanged: `PREFIX:HH:BASE64:`, where the base64 is of the key and the
//! CRC-32 of it, little endian (NVMe TP 8006 and 8011).

use openssl::base64;
use zeroize::Zeroizing;

/// What is wrong with such a text. Says nothing of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Another beginning.
    #[error("it does not begin with `{0}:`")]
    Prefix(&'static str),
    /// The second field.
    #[error("its second field is not two digits that name a hash")]
    Hash,
    /// The end.
    #[error("it does not end with `:`; a part of it may be missing")]
    End,
    /// Not base64.
    #[error("its third field is not base64")]
    Base64,
    /// A key of another length.
    #[error("its key has {0} bytes; 32, 48 and 64 are possible")]
    Length(usize),
    /// The check does not hold.
    #[error("its CRC-32 is wrong; a character of it has changed")]
    Check,
}

/// Bytes of the CRC-32.
const CHECK_BYTES: usize = 4;
/// The longest text: 64 bytes of key with their check are 92 characters.
const BASE64_BYTES_MAX: usize = 92;

/// The hash identifier, and the key.
pub(super) fn parse(
    prefix: &'static str,
    text: &str,
) -> Result<(u8, Zeroizing<Vec<u8>>), TextError> {
    let rest = text
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix(':'))
        .ok_or(TextError::Prefix(prefix))?;
    let (hash, rest) = rest.split_once(':').ok_or(TextError::Hash)?;
    let hash = match hash.as_bytes() {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => (tens - b'0') * 10 + ones - b'0',
        _ => return Err(TextError::Hash),
    };
    let encoded = rest.strip_suffix(':').ok_or(TextError::End)?;
    // The decoder passes over white space.
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if encoded.is_empty() || encoded.len() > BASE64_BYTES_MAX || !encoded.bytes().all(is_base64) {
        return Err(TextError::Base64);
    }
    let mut key = Zeroizing::new(base64::decode_block(encoded).map_err(|_| TextError::Base64)?);
    let length = key.len().saturating_sub(CHECK_BYTES);
    if ![32, 48, 64].contains(&length) {
        return Err(TextError::Length(length));
    }
    if key[length..] != check(&key[..length]) {
        return Err(TextError::Check);
    }
    key.truncate(length);
    Ok((hash, key))
}

/// The text.
pub(super) fn format(prefix: &str, hash: u8, key: &[u8]) -> Zeroizing<String> {
    let mut checked = Zeroizing::new(Vec::with_capacity(key.len() + CHECK_BYTES));
    checked.extend_from_slice(key);
    checked.extend_from_slice(&check(key));
    let encoded = Zeroizing::new(base64::encode_block(&checked));
    Zeroizing::new(format!("{prefix}:{hash:02}:{}:", *encoded))
}

fn check(key: &[u8]) -> [u8; CHECK_BYTES] {
    // 32 bits of it are the sum.
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, key);
    (sum as u32).to_le_bytes()
}
