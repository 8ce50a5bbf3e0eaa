//! The protocol's socket: messages with the descriptors that come with them.
//!
//! Guarantee: descriptors that nobody takes are closed.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::memory::REGIONS_MAX;
use crate::message::{HEADER_BYTES, Header, Request};

/// A message, and what came with it.
pub(crate) struct Received {
    pub(crate) header: Header,
    /// What it asks for, or what is wrong with it.
    pub(crate) request: io::Result<Request>,
    pub(crate) descriptors: VecDeque<OwnedFd>,
}

/// The next message; `None` when the front-end has gone.
pub(crate) fn receive(mut stream: &UnixStream) -> io::Result<Option<Received>> {
    let mut bytes = [0; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let taken = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = VecDeque::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if taken.bytes == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut bytes[taken.bytes..])?;
    let header = Header::parse(&bytes)?;
    let mut payload = vec![0; header.len];
    stream.read_exact(&mut payload)?;
    Ok(Some(Received {
        header,
        request: Request::parse(header.request, &payload),
        descriptors,
    }))
}

/// Sends a message, and a descriptor with it.
pub(crate) fn send(
    mut stream: &UnixStream,
    bytes: &[u8],
    descriptor: Option<&OwnedFd>,
) -> io::Result<()> {
    let Some(descriptor) = descriptor else {
        return stream.write_all(bytes);
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = [std::os::fd::AsFd::as_fd(descriptor)];
    if !control.push(SendAncillaryMessage::ScmRights(&rights)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let parts = [io::IoSlice::new(bytes)];
    let sent = sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(bytes.get(sent..).unwrap_or_default())
}
