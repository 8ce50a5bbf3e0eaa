//! What can be seen of a drive's nodes by whoever reaches its cluster: who owns it, which nodes offer its pool, and what they say.
//!
//! Guarantee: an owner that may live is never said to have left ([`Ownership`]).

use std::time::Duration;

use drives::nodes::{Described, Leased, NODES_MAX, OtherNode, Ownership, Process, Seen};

use crate::client::{Client, Errno};
use crate::header::{OWNER, Owner, REVISION, Tenant, header_of, node_of};

/// What a node says of itself to others.
pub(crate) const SAYS: &str = "onefold.says";

/// Bytes of a description that are read at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Who owns a drive, as this process sees it.
pub(crate) fn ownership(
    client: &dyn Client,
    drive: &str,
    own: &Process,
) -> Result<Ownership, Errno> {
    let header = header_of(drive);
    let holder = client.holder(&header)?;
    let holder = holder.and_then(|holder| holder.cookie.parse::<Tenant>().ok());
    if let Some(tenant) = holder
        && tenant.process.seen() != Seen::Gone
    {
        return Ok(Ownership::Owned(tenant.process.node));
    }
    let text = match client.attribute(&header, OWNER) {
        Ok(text) => text,
        Err(Errno::NOT_FOUND) => return Ok(Ownership::Missing),
        Err(error) if error.is_missing() => return Ok(Ownership::Left),
        Err(error) => return Err(error),
    };
    Ok(match Owner::parse(&text) {
        Some(owner) if owner.addresses.is_empty() => match owner.tenant.process == *own {
            true => Ownership::GaveAway,
            false => Ownership::Left,
        },
        Some(owner) if owner.tenant.process.seen() == Seen::Gone => Ownership::Left,
        Some(owner) => Ownership::Silent(owner.tenant.process.node),
        // Who takes the drive is told what is wrong with it.
        None => Ownership::Silent("unknown".to_owned()),
    })
}

/// The data of an object, if they are of another revision than the one that is known.
pub(crate) fn read_described(
    client: &dyn Client,
    object: &str,
    known: Option<&[u8]>,
    bytes_max: usize,
) -> Result<Option<Described>, Errno> {
    let revision = || match client.attribute(object, REVISION) {
        Err(error) if error.is_missing() => Ok(None),
        read => read.map(Some),
    };
    let Some(before) = revision()?.filter(|now| Some(&now[..]) != known) else {
        return Ok(None);
    };
    let mut text = Vec::new();
    while text.len() <= bytes_max {
        let at = text.len() as u64;
        let piece = client.read_now(object, at, PIECE_BYTES)?;
        let is_last = piece.len() < PIECE_BYTES;
        text.extend(piece);
        if is_last {
            break;
        }
    }
    // It was replaced meanwhile: the next look sees all of the new one.
    let is_whole = revision()?.as_ref() == Some(&before);
    Ok(is_whole.then_some(Described {
        revision: before,
        text,
    }))
}

pub(crate) fn nodes_of(client: &dyn Client, drive: &str) -> Result<Vec<OtherNode>, Errno> {
    let nodes = (0..NODES_MAX).filter_map(|number| node_with(client, drive, number).transpose());
    nodes.collect()
}

/// Who keeps a number, each for as long as `lease`.
pub(crate) fn keepers_of(
    client: &dyn Client,
    drive: &str,
    lease: Duration,
) -> Result<Vec<Leased>, Errno> {
    let keepers = (0..NODES_MAX).filter_map(|number| {
        let keeper = keeper(client, &node_of(drive, number)).transpose()?;
        Some(keeper.map(|process| Leased { process, lease }))
    });
    keepers.collect()
}

/// Who keeps the number with that object.
fn keeper(client: &dyn Client, object: &str) -> Result<Option<Process>, Errno> {
    let holder = client.holder(object)?;
    Ok(holder.and_then(|holder| Process::parse(&holder.cookie)))
}

fn node_with(client: &dyn Client, drive: &str, number: u16) -> Result<Option<OtherNode>, Errno> {
    let object = node_of(drive, number);
    let Some(process) = keeper(client, &object)? else {
        return Ok(None);
    };
    let says = match client.attribute(&object, SAYS) {
        Err(error) if error.is_missing() => Vec::new(),
        says => says?,
    };
    Ok((process.seen() != Seen::Gone).then_some(OtherNode {
        number,
        machine: process.node,
        says,
    }))
}
