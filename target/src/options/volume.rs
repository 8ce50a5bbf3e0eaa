//! A volume as `onefold serve --volume` names it.

use std::str::FromStr;

use dedup::VolumeSpec;
use meta::{Compression, UnknownCompression, UnknownVerifyPolicy, VerifyPolicy};
use uuid::Uuid;

use super::parse_switch;
use crate::size::{SizeError, parse_size};

/// `NAME=SIZE[,lba=512|4096][,dedup=on|off][,compression=off|lz4|zstd]
/// [,verify=trust|compare|background][,domain=NAME][,uuid=UUID]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeArg {
    /// The volume's name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes of a logical block as hosts see it: 512 or 4096.
    pub lba_bytes: u32,
    /// Whether its blocks are deduplicated.
    pub dedup: bool,
    /// How new contents are stored.
    pub compression: Compression,
    /// What a write does about a block that has the fingerprint of new data.
    pub verify: VerifyPolicy,
    /// Its domain; empty for the pool's own.
    pub domain: String,
    /// Its identity; a random one if it is not said.
    pub uuid: Option<Uuid>,
}

impl FromStr for VolumeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || {
            format!(
                "'{text}' is not NAME=SIZE[,lba=512][,dedup=off][,compression=lz4][,verify=compare]\
                 [,domain=NAME][,uuid=UUID], such as vol0=64G"
            )
        };
        let (name, rest) = text.split_once('=').ok_or_else(usage)?;
        if name.is_empty() {
            return Err(usage());
        }
        let mut parts = rest.split(',');
        let size_bytes =
            parse_size(parts.next().unwrap_or_default()).map_err(|e: SizeError| e.to_string())?;
        let (mut lba_bytes, mut dedup, mut compression) = (4096, true, Compression::Off);
        let (mut verify, mut domain, mut uuid) = (VerifyPolicy::Trust, String::new(), None);
        for option in parts {
            match option.split_once('=') {
                Some(("lba", bytes)) => lba_bytes = parse_lba(bytes)?,
                Some(("dedup", switch)) => dedup = parse_switch(switch)?,
                Some(("compression", name)) => compression = parse_compression(name)?,
                Some(("verify", policy)) => verify = parse_verify(policy)?,
                Some(("domain", name)) => domain = name.to_owned(),
                Some(("uuid", text)) => uuid = Some(parse_uuid(text)?),
                _ => return Err(usage()),
            }
        }
        let volume = Self {
            name: name.to_owned(),
            size_bytes,
            lba_bytes,
            dedup,
            compression,
            verify,
            domain,
            uuid,
        };
        match volume.spec().check() {
            Ok(()) => Ok(volume),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl VolumeArg {
    /// What the engine makes it of.
    #[must_use]
    pub fn spec(&self) -> VolumeSpec {
        VolumeSpec {
            name: self.name.clone(),
            size_bytes: self.size_bytes,
            lba_bytes: self.lba_bytes,
            nsid: None,
            uuid: self.uuid,
            dedup: self.dedup,
            compression: self.compression,
            verify: self.verify,
            domain: self.domain.clone(),
        }
    }
}

/// Whether volumes can be made beside each other.
///
/// # Errors
/// Names the two that cannot.
pub(super) fn check_together(volumes: &[VolumeArg]) -> Result<(), String> {
    for (index, volume) in volumes.iter().enumerate() {
        for other in &volumes[..index] {
            if other.name == volume.name && other != volume {
                return Err(format!(
                    "volume '{}' is named twice, and not with the same size and options: name it once",
                    volume.name
                ));
            }
            if other.name != volume.name && other.uuid.is_some() && other.uuid == volume.uuid {
                return Err(format!(
                    "volumes '{}' and '{}' have the same uuid: leave one out, then it gets a random one",
                    other.name, volume.name
                ));
            }
        }
    }
    Ok(())
}

/// Parses an identity, as a UUID or as the 32 digits of an NGUID.
pub(crate) fn parse_uuid(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|error| {
        format!("'{text}' is neither a UUID nor an NGUID of 32 hexadecimal digits: {error}")
    })
}

/// Parses the name of a compression.
pub(crate) fn parse_compression(text: &str) -> Result<Compression, String> {
    text.parse()
        .map_err(|error: UnknownCompression| error.to_string())
}

/// Parses the name of a verify policy.
pub(crate) fn parse_verify(text: &str) -> Result<VerifyPolicy, String> {
    text.parse()
        .map_err(|error: UnknownVerifyPolicy| error.to_string())
}

/// Parses the bytes of a logical block.
pub(crate) fn parse_lba(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4k" | "4K" => Ok(4096),
        _ => Err(format!(
            "'{text}' is not a logical block size: use 512 or 4096"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(text: &str) -> VolumeArg {
        text.parse().expect("a volume")
    }

    #[test]
    fn what_no_pool_could_have_is_refused_before_there_is_one() {
        for text in ["v=0", "v=1000", "b@d=1G", "v=1G,domain=a/b"] {
            let refused = text.parse::<VolumeArg>().expect_err(text);
            assert!(
                refused.contains("use") || refused.contains("4096"),
                "{refused}"
            );
        }
        assert_eq!(volume("v=1G,lba=512").spec().lba_bytes, 512);
    }

    #[test]
    fn volumes_that_contradict_each_other_are_named() {
        let uuid = ",uuid=6f6e6566-6f6c-4d00-8000-00000000e001";
        let check = |texts: &[&str]| {
            let volumes: Vec<VolumeArg> = texts.iter().map(|text| volume(text)).collect();
            check_together(&volumes)
        };
        assert_eq!(check(&["a=1G", "b=1G", "a=1G"]), Ok(()));
        assert!(check(&["a=1G", "b=1G", "a=2G"]).is_err_and(|why| why.contains("'a'")));
        let [one, two] = ["one=1G", "two=1G"].map(|text| text.to_owned() + uuid);
        assert!(check(&[&one, &two]).is_err_and(|why| why.contains("'two'")));
        assert_eq!(check(&[&one, &one]), Ok(()));
    }
}
