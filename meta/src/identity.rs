//! `pool.toml`: what a pool is, its drives, and the keys of its fingerprints.
//!
//! Guarantee: a file that was changed, that a newer program wrote, or that is too large is refused, and left as it was.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::codec::crc32c;
use crate::error::MetaError;
use crate::label::DriveLabel;
use crate::types::FingerprintFunction;

/// Version of a `pool.toml` that names no function for fingerprints: they are BLAKE3.
const VERSION_BLAKE3: u64 = 1;
/// Version of one that does. A program that does not know the function must not open the pool: none of its blocks
/// would be what it expects.
const VERSION: u64 = 2;
/// Version of one with keys of domains that came from other pools: without them nothing of those domains would be what it
/// is expected to be.
const VERSION_DOMAIN_KEYS: u64 = 3;
/// Version of one that names spares, or failure domains of drives: a program that does not know these would lay both copies
/// where one failure takes them.
const VERSION_SPARES: u64 = 4;
/// Version of one that names drives that were removed: a program that does not know these would look for them.
const VERSION_REMOVED: u64 = 5;
/// Version of one with drives that keep metadata: a program that does not know of it would put data there, and let what is
/// kept become old.
const VERSION_METADATA: u64 = 6;
/// Spares at most.
const SPARES_MAX: usize = 64;
/// The longest name of a failure domain, in bytes.
const FAILURE_DOMAIN_BYTES_MAX: usize = 64;
/// Keys of domains at most: as many as a pool has volumes.
pub(crate) const DOMAIN_KEYS_MAX: usize = 1024;
/// Largest `pool.toml` that is read, in bytes; 2^16 drives with long paths would not be.
const IDENTITY_BYTES_MAX: u64 = 1 << 20;

/// A drive of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveSpec {
    /// Path of the file or device, or address of a drive of another program ([`is_remote_drive`]); relative paths are relative to the
    /// pool folder.
    pub path: PathBuf,
    /// Identity, also on the drive's label.
    pub uuid: Uuid,
    /// Size in blocks of 4096 bytes, the label area included, and what is kept for metadata not.
    pub blocks: u64,
    /// Its failure domain: drives of one are likely to fail together. `None`: it fails alone.
    pub domain: Option<String>,
    /// Blocks behind those that are kept for the pool's metadata ([`metadata_blocks`](crate::metadata_blocks)); 0: none.
    pub metadata_blocks: u64,
    /// It was removed: nothing of the pool lies there. Its place in the list stays, because others are known by theirs.
    pub is_removed: bool,
}

/// A drive that waits to take the place of one that fails. It belongs to the pool, holds nothing, and has no label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpareSpec {
    /// Path of the file or device.
    pub path: PathBuf,
    /// Its failure domain, as a drive's.
    pub domain: Option<String>,
}

/// How the paths of drives begin that are namespaces of NVMe-oF targets, devices of vhost-user-blk servers, or objects of a Ceph
/// cluster: addresses, of which no file system knows.
const REMOTE_SCHEMES: [&str; 4] = ["nvme+tcp://", "nvme+rdma://", "vhost-user:", "rados:"];

/// Whether a drive's path is the address of what other programs have, and no path of a file or device of this machine.
#[must_use]
pub fn is_remote_drive(path: &Path) -> bool {
    let text = path.to_str();
    text.is_some_and(|text| REMOTE_SCHEMES.iter().any(|scheme| text.starts_with(scheme)))
}

/// A drive's path, with a relative one taken from the working directory; an address stays as it is.
///
/// # Errors
/// There is no working directory, or the path is empty.
pub fn absolute_drive_path(path: &Path) -> std::io::Result<PathBuf> {
    match is_remote_drive(path) {
        true => Ok(path.to_owned()),
        false => std::path::absolute(path),
    }
}

/// A drive's path, with a relative one taken from the pool's folder.
pub(crate) fn resolved(dir: &Path, path: &Path) -> PathBuf {
    match is_remote_drive(path) {
        true => path.to_owned(),
        false => dir.join(path),
    }
}

impl DriveSpec {
    /// A drive with a new identity.
    pub fn new(path: impl Into<PathBuf>, blocks: u64) -> Self {
        Self {
            path: path.into(),
            uuid: Uuid::new_v4(),
            blocks,
            domain: None,
            metadata_blocks: 0,
            is_removed: false,
        }
    }
}

/// The secrets that fingerprints are keyed with.
#[derive(Clone, PartialEq, Eq)]
pub struct HashKeys {
    /// The pool's own: that of the domain without a name. Those of all others are derived from it, but for these:
    pub pool: [u8; 32],
    /// Keys that domains have from another pool, by their names.
    pub domains: BTreeMap<String, [u8; 32]>,
}

impl From<[u8; 32]> for HashKeys {
    /// Nothing but a pool's own key.
    fn from(pool: [u8; 32]) -> Self {
        Self {
            pool,
            domains: BTreeMap::new(),
        }
    }
}

impl fmt::Debug for HashKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKeys")
    }
}

/// What a pool is.
#[derive(Clone, PartialEq, Eq)]
pub struct PoolIdentity {
    /// The pool.
    pub uuid: Uuid,
    /// Unit of deduplication in bytes.
    pub sub_block_bytes: u32,
    /// How fingerprints are computed.
    pub fingerprint: FingerprintFunction,
    /// Secret keys of the fingerprints.
    pub hash_keys: HashKeys,
    /// The drives, in the order of their indexes.
    pub drives: Vec<DriveSpec>,
    /// Drives that wait to take the place of one that fails.
    pub spares: Vec<SpareSpec>,
}

impl fmt::Debug for PoolIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolIdentity")
            .field("uuid", &self.uuid)
            .field("sub_block_bytes", &self.sub_block_bytes)
            .field("fingerprint", &self.fingerprint)
            .field("hash_keys", &"(secret)")
            .field("drives", &self.drives)
            .field("spares", &self.spares)
            .finish()
    }
}

impl PoolIdentity {
    /// The identity in the text of a `pool.toml`, called `path` in messages.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] or [`MetaError::WrongVersion`].
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, MetaError> {
        parse(path, text)
    }

    /// The text of its `pool.toml`. It holds the secret key.
    ///
    /// # Errors
    /// [`MetaError::Invalid`] if a drive's path is not text.
    pub fn to_text(&self) -> Result<String, MetaError> {
        encode(self)
    }

    /// Takes a drive behind the others, which is no spare from here on.
    pub fn add_drive(&mut self, drive: DriveSpec) {
        self.spares.retain(|spare| spare.path != drive.path);
        self.drives.push(drive);
    }

    /// Takes another drive in the place of the one with that index, if there is one; it is no spare from here on.
    pub fn replace_drive(&mut self, index: u16, drive: DriveSpec) {
        self.spares.retain(|spare| spare.path != drive.path);
        if let Some(place) = self.drives.get_mut(usize::from(index)) {
            *place = drive;
        }
    }

    /// Indexes of drives that were removed.
    pub fn removed(&self) -> impl Iterator<Item = u16> {
        let drives = (0u16..).zip(&self.drives);
        let removed = drives.filter(|(_, drive)| drive.is_removed);
        removed.map(|(index, _)| index)
    }

    /// The label that the drive with this index must carry.
    pub fn label(&self, index: u16) -> Option<DriveLabel> {
        let drive = self.drives.get(usize::from(index))?;
        Some(DriveLabel {
            pool: self.uuid,
            drive: drive.uuid,
            index,
            blocks: drive.blocks,
            sub_block_bytes: self.sub_block_bytes,
        })
    }
}

/// `pool.toml` as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityFile {
    format_version: u64,
    pool_uuid: Uuid,
    sub_block_bytes: u32,
    /// From [`VERSION`] on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<FingerprintFunction>,
    /// 64 hexadecimal digits.
    hash_key: String,
    /// CRC-32C of everything but the drives' paths, which people may edit; 8 hexadecimal digits.
    check: String,
    #[serde(default)]
    drive: Vec<DriveEntry>,
    /// From [`VERSION_DOMAIN_KEYS`] on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    domain_key: Vec<DomainKeyEntry>,
    /// From [`VERSION_SPARES`] on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    spare: Vec<SpareEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DomainKeyEntry {
    domain: String,
    /// 64 hexadecimal digits.
    key: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DriveEntry {
    path: PathBuf,
    uuid: Uuid,
    blocks: u64,
    /// From [`VERSION_SPARES`] on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    /// From [`VERSION_METADATA`] on.
    #[serde(default, skip_serializing_if = "is_zero")]
    metadata_blocks: u64,
    /// From [`VERSION_REMOVED`] on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpareEntry {
    path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

const REMEDY_IDENTITY: &str = "restore it from a copy (paths of drives may be edited, nothing else); \
                               nothing was changed";

/// BLAKE3 is what a pool of the first version has, so such a pool stays one.
fn version_of(identity: &PoolIdentity) -> u64 {
    let has_domains = identity.drives.iter().any(|drive| drive.domain.is_some());
    match identity.fingerprint {
        _ if identity
            .drives
            .iter()
            .any(|drive| drive.metadata_blocks > 0) =>
        {
            VERSION_METADATA
        }
        _ if identity.drives.iter().any(|drive| drive.is_removed) => VERSION_REMOVED,
        _ if has_domains || !identity.spares.is_empty() => VERSION_SPARES,
        _ if !identity.hash_keys.domains.is_empty() => VERSION_DOMAIN_KEYS,
        FingerprintFunction::Blake3 => VERSION_BLAKE3,
        FingerprintFunction::Clnh => VERSION,
    }
}

pub(crate) fn encode(identity: &PoolIdentity) -> Result<String, MetaError> {
    let file = IdentityFile {
        format_version: version_of(identity),
        pool_uuid: identity.uuid,
        sub_block_bytes: identity.sub_block_bytes,
        fingerprint: match identity.fingerprint {
            FingerprintFunction::Blake3 => None,
            other => Some(other),
        },
        hash_key: to_hex(&identity.hash_keys.pool),
        check: format!("{:08x}", checksum(identity)),
        drive: identity
            .drives
            .iter()
            .map(|drive| DriveEntry {
                path: drive.path.clone(),
                uuid: drive.uuid,
                blocks: drive.blocks,
                domain: drive.domain.clone(),
                metadata_blocks: drive.metadata_blocks,
                removed: drive.is_removed,
            })
            .collect(),
        domain_key: identity
            .hash_keys
            .domains
            .iter()
            .map(|(domain, key)| DomainKeyEntry {
                domain: domain.clone(),
                key: to_hex(key),
            })
            .collect(),
        spare: identity
            .spares
            .iter()
            .map(|spare| SpareEntry {
                path: spare.path.clone(),
                domain: spare.domain.clone(),
            })
            .collect(),
    };
    let text = toml::to_string(&file)
        .map_err(|error| MetaError::Invalid(format!("the pool cannot be described: {error}")))?;
    Ok(format!(
        "# Identity of an Onefold pool. Keep a copy in a safe place: it holds the secret hash key.\n\
         # Only the paths of drives may be edited, when drives have moved.\n{text}"
    ))
}

pub(crate) fn read_identity(path: &Path) -> Result<PoolIdentity, MetaError> {
    let io = |error| MetaError::io(path, "read the file", error);
    let file = File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(
            "{}: other users can read the hash key; run `chmod 600` on it",
            path.display()
        );
    }
    let mut bytes = Vec::new();
    file.take(IDENTITY_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    parse(path, &bytes)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<PoolIdentity, MetaError> {
    let corrupt = |detail: String| MetaError::corrupt(path, detail, REMEDY_IDENTITY);
    let text = std::str::from_utf8(bytes).map_err(|_| corrupt("it is not text".to_owned()))?;
    // The version first: another version may have other fields.
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| corrupt(error.message().to_owned()))?;
    let version = table
        .get("format_version")
        .and_then(toml::Value::as_integer)
        .ok_or_else(|| corrupt("it has no format_version".to_owned()))?;
    if !(VERSION_BLAKE3 as i64..=VERSION_METADATA as i64).contains(&version) {
        return Err(MetaError::WrongVersion {
            path: path.to_path_buf(),
            found: version.max(0) as u64,
            supported: VERSION_METADATA,
        });
    }
    let file: IdentityFile =
        toml::from_str(text).map_err(|error| corrupt(error.message().to_owned()))?;
    let fingerprint = file.fingerprint.unwrap_or(FingerprintFunction::Blake3);
    let key = |name: &str, text: &str| {
        from_hex(text).ok_or_else(|| corrupt(format!("{name} is not 64 hexadecimal digits")))
    };
    let mut hash_keys = HashKeys::from(key("hash_key", &file.hash_key)?);
    for entry in file.domain_key {
        let of_domain = key("the key of a domain", &entry.key)?;
        if hash_keys.domains.insert(entry.domain, of_domain).is_some() {
            return Err(corrupt("a domain has two keys".to_owned()));
        }
    }
    let drives = file
        .drive
        .into_iter()
        .map(|drive| DriveSpec {
            path: drive.path,
            uuid: drive.uuid,
            blocks: drive.blocks,
            domain: drive.domain,
            metadata_blocks: drive.metadata_blocks,
            is_removed: drive.removed,
        })
        .collect();
    let spares = file.spare.into_iter().map(|spare| SpareSpec {
        path: spare.path,
        domain: spare.domain,
    });
    let identity = PoolIdentity {
        uuid: file.pool_uuid,
        sub_block_bytes: file.sub_block_bytes,
        fingerprint,
        hash_keys,
        drives,
        spares: spares.collect(),
    };
    if version_of(&identity) != file.format_version {
        return Err(corrupt(
            "its version and what it says of fingerprints, domains, spares and drives do not belong together".to_owned(),
        ));
    }
    if file.check != format!("{:08x}", checksum(&identity)) {
        return Err(corrupt(
            "its content does not match its checksum".to_owned(),
        ));
    }
    validate(identity.sub_block_bytes, &identity.drives).map_err(corrupt)?;
    validate_spares(&identity).map_err(corrupt)?;
    Ok(identity)
}

fn checksum(identity: &PoolIdentity) -> u32 {
    let mut text = format!(
        "{}|{}|{}|{}",
        version_of(identity),
        identity.uuid,
        identity.sub_block_bytes,
        to_hex(&identity.hash_keys.pool)
    );
    if identity.fingerprint != FingerprintFunction::Blake3 {
        text.push_str(&format!("|{}", identity.fingerprint));
    }
    for drive in &identity.drives {
        text.push_str(&format!("|{}|{}", drive.uuid, drive.blocks));
        if let Some(domain) = &drive.domain {
            text.push_str(&format!("|{}|{domain}", domain.len()));
        }
        if drive.is_removed {
            text.push_str("|removed");
        }
        if drive.metadata_blocks > 0 {
            text.push_str(&format!("|metadata {}", drive.metadata_blocks));
        }
    }
    for (domain, key) in &identity.hash_keys.domains {
        // Its length ends the name, whatever that has.
        text.push_str(&format!("|{}|{domain}|{}", domain.len(), to_hex(key)));
    }
    crc32c(text.as_bytes())
}

pub(crate) fn validate(sub_block_bytes: u32, drives: &[DriveSpec]) -> Result<(), String> {
    if !sub_block_bytes.is_power_of_two() || !(4096..=1 << 20).contains(&sub_block_bytes) {
        return Err(format!(
            "a sub-block of {sub_block_bytes} bytes is not possible; use a power of two from 4096 to 1 MiB"
        ));
    }
    if drives.is_empty() || drives.len() > usize::from(u16::MAX) {
        return Err(format!(
            "{} drives are not possible; use 1 to {}",
            drives.len(),
            u16::MAX
        ));
    }
    for (index, drive) in drives.iter().enumerate() {
        let earlier = drives.get(..index).unwrap_or_default();
        if earlier.iter().any(|other| {
            // Where a drive was removed another one may be.
            let are_there = !other.is_removed && !drive.is_removed;
            other.uuid == drive.uuid || (are_there && other.path == drive.path)
        }) {
            return Err(format!("drive {} is named twice", drive.path.display()));
        }
        // Every address must fit in a PBA's block number.
        if drive.blocks > crate::types::Pba::BLOCK_MAX {
            return Err(format!(
                "drive {} has too many blocks: {}",
                drive.path.display(),
                drive.blocks
            ));
        }
        if drive.metadata_blocks > crate::types::Pba::BLOCK_MAX {
            return Err(format!(
                "drive {} has too many blocks for metadata: {}",
                drive.path.display(),
                drive.metadata_blocks
            ));
        }
        check_domain(drive.domain.as_deref())?;
    }
    Ok(())
}

pub(crate) fn validate_spares(identity: &PoolIdentity) -> Result<(), String> {
    let spares = &identity.spares;
    if spares.len() > SPARES_MAX {
        return Err(format!(
            "{} spares are not possible; use {SPARES_MAX} at most",
            spares.len()
        ));
    }
    for (index, spare) in spares.iter().enumerate() {
        let path = &spare.path;
        let mut drives = identity.drives.iter();
        let is_drive = drives.any(|drive| !drive.is_removed && drive.path == *path);
        if is_drive || spares[..index].iter().any(|other| other.path == *path) {
            return Err(format!(
                "drive {} is a drive or a spare of the pool already",
                path.display()
            ));
        }
        check_domain(spare.domain.as_deref())?;
    }
    Ok(())
}

/// A name that a command line and a table can show.
fn check_domain(domain: Option<&str>) -> Result<(), String> {
    let is_fit = |domain: &str| {
        (1..=FAILURE_DOMAIN_BYTES_MAX).contains(&domain.len())
            && domain
                .chars()
                .all(|char| char.is_alphanumeric() || "-_.:/".contains(char))
    };
    match domain {
        Some(domain) if !is_fit(domain) => Err(format!(
            "failure domain '{}': use 1 to {FAILURE_DOMAIN_BYTES_MAX} bytes of letters, digits and -_.:/",
            domain.escape_debug()
        )),
        _ => Ok(()),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut key = [0; 32];
    if digits.len() != 2 * key.len() {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(*high)? << 4 | value(*low)?) as u8;
    }
    Some(key)
}
