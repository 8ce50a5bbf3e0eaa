//! Namespace Management and Namespace Attachment, for subsystems that allow them.
//!
//! A namespace that a host creates is a new volume, which no host sees until it is attached. Controllers are temporary, so
//! a namespace is attached to the host of a controller: all controllers of that host in the subsystem see it, later ones
//! too.
//!
//! Guarantees:
//! - In a subsystem that does not allow them, both commands are invalid opcodes.
//! - Deleting a namespace deletes its volume only if no other subsystem shows it.
//! - A command that fails because of what it asks for has changed nothing.
//! - A host cannot delete a namespace that a reservation or write protection keeps it from writing: both commands are
//!   write commands to reservations (Base 2.0, section 8.19). Attaching and detaching a write-protected namespace is
//!   allowed, because it does not change it (8.12).

use std::collections::BTreeSet;

use dedup::{ErrorKind, VolumeSpec};
use meta::{Compression, VerifyPolicy};
use nvme::admin::{NamespaceAttachment, NamespaceManagement};
use nvme::identify::{IDENTIFY_BYTES, IdentifyNamespace, NSID_BROADCAST, decode_controller_list};
use nvme::{Nqn, Status};
use reservations::{Access, HostId};
use uuid::Uuid;

use crate::catalog::{ANA_GROUP_DEFAULT, NamespaceConfig, WriteProtect};
use crate::connected_queue::command::{Command, Fault, Outcome, Success};
use crate::controller::Controller;
use crate::errors::Failure;
use crate::queue::Queue;
use crate::target::volumes::Place;

/// Byte offsets in the command, for the error log.
const NSID_AT: u16 = 4;
const SELECT_AT: u16 = 40;

/// Bytes of a logical block in each LBA format, by its number.
pub(crate) const LBA_FORMATS: [u32; 2] = [4096, 512];

/// Whether hosts manage the namespaces of this controller's subsystem.
pub(crate) fn is_allowed<Q: Queue>(command: &Command<Q>) -> bool {
    let live = command.queue.target.live();
    live.subsystem(&command.queue.controller.subsystem.nqn)
        .is_some_and(|config| config.namespace_management)
}

fn check_allowed<Q: Queue>(command: &Command<Q>) -> Result<(), Fault> {
    match is_allowed(command) {
        true => Ok(()),
        false => Err(Status::INVALID_OPCODE.with_dnr().into()),
    }
}

/// Whether reservations let the host write to a namespace, even if it does not see it.
fn check_reservations<Q: Queue>(
    command: &Command<Q>,
    namespace: &NamespaceConfig,
) -> Result<(), Fault> {
    let host = HostId::from_bytes(command.queue.controller.host.id);
    let reservations = command.queue.target.reservations.of(namespace.volume);
    match reservations.now().admits(&host, Access::Write) {
        true => Ok(()),
        false => Err(Status::RESERVATION_CONFLICT.with_dnr().into()),
    }
}

/// The status for a change that could not be made.
fn refused(controller: &Controller, failure: &Failure) -> Fault {
    fabric::log_of_peer!(
        warn,
        "namespace management",
        controller.peer.ip(),
        %controller,
        %failure,
        "a host cannot change namespaces"
    );
    match failure.kind {
        // The request itself was checked before.
        ErrorKind::Invalid => Status::NAMESPACE_ID_UNAVAILABLE.with_dnr().into(),
        kind => crate::errors::nvme_status(kind).into(),
    }
}

/// Runs Namespace Management.
pub(crate) async fn manage<Q: Queue>(
    command: &Command<Q>,
    management: NamespaceManagement,
) -> Outcome {
    check_allowed(command)?;
    match management {
        NamespaceManagement::Create { csi: 0 } => create(command).await,
        NamespaceManagement::Create { .. } => {
            Err(Status::COMMAND_SET_NOT_SUPPORTED.with_dnr().into())
        }
        NamespaceManagement::Delete { nsid } => delete(command, nsid).await,
        NamespaceManagement::Unknown => Err(Fault::field(Status::INVALID_FIELD, SELECT_AT)),
    }
}

async fn create<Q: Queue>(command: &Command<Q>) -> Outcome {
    command.check_data_len(IDENTIFY_BYTES)?;
    let data = command.fetch(IDENTIFY_BYTES).await?;
    let wanted = IdentifyNamespace::decode(&data).ok_or(Status::INVALID_FIELD.with_dnr())?;
    drop(data);
    let format = usize::from(wanted.flbas & 0xf);
    let lba_bytes = *LBA_FORMATS
        .get(format)
        .ok_or(Status::INVALID_FORMAT.with_dnr())?;
    if wanted.dps != 0 || !matches!(wanted.anagrpid, 0 | ANA_GROUP_DEFAULT) {
        return Err(Status::INVALID_FIELD.with_dnr().into());
    }
    if wanted.ncap > wanted.nsze || wanted.nsze == 0 {
        return Err(Status::INVALID_FIELD.with_dnr().into());
    }
    // Volumes are made of whole sub-blocks.
    let size_bytes = wanted
        .nsze
        .checked_mul(u64::from(lba_bytes))
        .and_then(|bytes| bytes.checked_next_multiple_of(dedup::SUB_BLOCK_BYTES as u64))
        .filter(|bytes| *bytes <= 1 << 60)
        .ok_or(Status::NAMESPACE_INSUFFICIENT_CAPACITY.with_dnr())?;
    let uuid = Uuid::new_v4();
    let spec = VolumeSpec {
        name: format!("host-{}", uuid.simple()),
        size_bytes,
        lba_bytes,
        nsid: None,
        uuid: Some(uuid),
        dedup: true,
        compression: Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    };
    let place = Place::In {
        nqn: command.queue.controller.subsystem.nqn.clone(),
        hosts: Some(BTreeSet::new()),
        shared: wanted.nmic & 1 == 1,
    };
    let name = spec.name.clone();
    let made = command.queue.target.create_volume(spec, place).await;
    let controller = &command.queue.controller;
    let nsid = made.map_err(|failure| refused(controller, &failure))?;
    let host = &controller.host.nqn;
    fabric::log_of_peer!(
        info,
        "namespace created",
        controller.peer.ip(),
        %host,
        volume = name,
        nsid,
        size_bytes,
        "a host created a namespace"
    );
    Ok(Success::result(u64::from(nsid.unwrap_or(0))))
}

async fn delete<Q: Queue>(command: &Command<Q>, nsid: u32) -> Outcome {
    let (target, controller) = (&command.queue.target, &command.queue.controller);
    let nqn = &controller.subsystem.nqn;
    let catalog = target.catalog();
    let subsystem = catalog
        .subsystem(nqn)
        .map_err(|failure| refused(controller, &failure))?;
    let doomed: Vec<u32> = match nsid {
        NSID_BROADCAST => subsystem.namespaces.keys().copied().collect(),
        nsid if subsystem.namespaces.contains_key(&nsid) => vec![nsid],
        _ => return Err(Fault::field(Status::INVALID_NAMESPACE, NSID_AT)),
    };
    // All of them are checked before the first one is deleted.
    for namespace in doomed.iter().map(|nsid| &subsystem.namespaces[nsid]) {
        if namespace.write_protect != WriteProtect::Off {
            return Err(Fault::field(Status::NAMESPACE_WRITE_PROTECTED, NSID_AT));
        }
        check_reservations(command, namespace)?;
    }
    for nsid in doomed {
        let detached = target.change(|catalog| catalog.detach(nqn, nsid)).await;
        let gone = detached.map_err(|failure| refused(controller, &failure))?;
        let shown_elsewhere = target.catalog().places_of(gone.volume).next().is_some();
        let volumes = target.engine()?.volumes();
        let volume = volumes.iter().find(|info| info.uuid == gone.volume);
        let host = &controller.host.nqn;
        fabric::log_of_peer!(
            info,
            "namespace deleted",
            controller.peer.ip(),
            %host,
            nsid,
            shown_elsewhere,
            "a host deletes a namespace"
        );
        if let Some(info) = volume
            && !shown_elsewhere
        {
            let deleted = target.delete_volume(&info.name).await;
            deleted.map_err(|failure| refused(controller, &failure))?;
        }
    }
    Ok(Success::default())
}

/// Runs Namespace Attachment.
pub(crate) async fn attach<Q: Queue>(
    command: &Command<Q>,
    attachment: NamespaceAttachment,
) -> Outcome {
    check_allowed(command)?;
    if attachment.select > NamespaceAttachment::DETACH {
        return Err(Fault::field(Status::INVALID_FIELD, SELECT_AT));
    }
    command.check_data_len(IDENTIFY_BYTES)?;
    let data = command.fetch(IDENTIFY_BYTES).await?;
    let invalid_list = Fault::from(Status::CONTROLLER_LIST_INVALID.with_dnr());
    let ids = decode_controller_list(&data).ok_or(invalid_list)?;
    drop(data);
    let queue = &command.queue;
    let nqn = &queue.controller.subsystem.nqn;
    let subsystem = &queue.controller.subsystem;
    let admitted = |id: &u16| {
        let controller = subsystem.controller(*id);
        controller.filter(|controller| controller.is_admitted())
    };
    let controllers: Option<Vec<_>> = ids.iter().map(admitted).collect();
    let controllers = controllers.filter(|all| !all.is_empty());
    let controllers = controllers.ok_or(invalid_list)?;
    let live = queue.target.live();
    let namespace = live
        .subsystem(nqn)
        .and_then(|config| config.namespaces.get(&attachment.nsid))
        .ok_or(Fault::field(Status::INVALID_NAMESPACE, NSID_AT))?;
    check_reservations(command, namespace)?;
    let sees = |host: &Nqn| namespace.shows_to(host);
    let hosts: BTreeSet<Nqn> = controllers.iter().map(|c| c.host.nqn.clone()).collect();
    if attachment.select == NamespaceAttachment::ATTACH {
        if hosts.iter().any(sees) {
            return Err(Status::NAMESPACE_ALREADY_ATTACHED.with_dnr().into());
        }
        let others = namespace.hosts.as_ref().map_or(0, BTreeSet::len);
        if !namespace.shared && others + controllers.len() > 1 {
            return Err(Status::NAMESPACE_IS_PRIVATE.with_dnr().into());
        }
    } else if !hosts.iter().all(sees) {
        return Err(Status::NAMESPACE_NOT_ATTACHED.with_dnr().into());
    }
    let attached: BTreeSet<Nqn> = subsystem
        .admitted_controllers()
        .iter()
        .map(|controller| controller.host.nqn.clone())
        .collect();
    let changed = queue.target.change(|catalog| {
        let listed = {
            let config = catalog.subsystem(nqn)?;
            match config.allow_any_host {
                // Hosts that see it now keep seeing it.
                true => attached,
                false => config.hosts.clone(),
            }
        };
        let namespace = catalog.namespace_mut(nqn, attachment.nsid)?;
        change_hosts(namespace, attachment.select, &hosts, listed);
        Ok(())
    });
    changed
        .await
        .map_err(|failure| refused(&queue.controller, &failure))?;
    Ok(Success::default())
}

/// Attaches hosts, or detaches them; `all` are the hosts that see a namespace without a list.
fn change_hosts(
    namespace: &mut NamespaceConfig,
    select: u8,
    hosts: &BTreeSet<Nqn>,
    all: BTreeSet<Nqn>,
) {
    let mut list = namespace.hosts.take().unwrap_or(all);
    if select == NamespaceAttachment::ATTACH {
        list.extend(hosts.iter().cloned());
    } else {
        list.retain(|host| !hosts.contains(host));
    }
    namespace.hosts = Some(list);
}
