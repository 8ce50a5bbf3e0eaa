//! A target on TCP, hosts that attach to it, and one without manners.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;

use fabric::{
    Connector, HostData, HostQueue, HostQueueParams, TargetQueue, TcpHostConfig, TcpListener,
    TcpListenerConfig,
};
use nvme::fabrics::ConnectCommand;
use nvme::tcp::{Data, Digests, Frame, IcReq, IcResp, Pdu, Sender, TermReq, digest};
use nvme::{Cqe, SglDescriptor, Sqe, Status};

use crate::common::{command, pattern, read, serve, write};

pub(crate) const IO: HostQueueParams = HostQueueParams {
    qid: 1,
    depth: 32,
    cntlid: 1,
    in_capsule_bytes: 16384,
};

pub(crate) fn config() -> TcpListenerConfig {
    TcpListenerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)))
}

/// A target with one piece of memory.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) listener: Rc<TcpListener>,
    pub(crate) disk: Rc<RefCell<Vec<u8>>>,
    pub(crate) queues: Rc<RefCell<Vec<TargetQueue>>>,
}

impl Target {
    pub(crate) fn start(config: TcpListenerConfig) -> Self {
        Self::serve(TcpListener::bind(config).expect("a free port"))
    }

    pub(crate) fn serve(listener: TcpListener) -> Self {
        let target = Self {
            listener: Rc::new(listener),
            disk: Rc::new(RefCell::new(vec![0; 8 << 20])),
            queues: Rc::default(),
        };
        let serving = target.clone();
        reactor::spawn(async move {
            while let Some(queue) = TargetQueue::accept_tcp(&serving.listener).await {
                serving.queues.borrow_mut().push(queue.clone());
                reactor::spawn(serve(serving.disk.clone(), queue));
            }
        });
        target
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}

pub(crate) fn connect_command(depth: u16, flow_control: bool) -> Sqe {
    let attributes = match flow_control {
        true => 0,
        false => ConnectCommand::DISABLE_SQ_FLOW_CONTROL,
    };
    ConnectCommand {
        record_format: 0,
        qid: 1,
        sqsize: depth - 1,
        attributes,
        kato_ms: 0,
    }
    .to_sqe()
}

/// A queue whose Connect has succeeded.
pub(crate) async fn attach(target: &Target, host: TcpHostConfig, flow_control: bool) -> HostQueue {
    attach_at(target.address(), host, flow_control).await
}

pub(crate) async fn attach_at(
    address: SocketAddr,
    host: TcpHostConfig,
    flow_control: bool,
) -> HostQueue {
    let queue = HostQueue::connect(&Connector::tcp(host), address, IO)
        .await
        .expect("a queue");
    let command = connect_command(IO.depth, flow_control);
    let (cqe, _) = queue
        .submit(command, HostData::None)
        .await
        .expect("an answer");
    assert_eq!(cqe.status, Status::SUCCESS);
    queue
}

/// Another host's commands go on.
pub(crate) async fn goes_on(good: &HostQueue) {
    let data = pattern(99, 131_072);
    assert_eq!(write(good, 0, &data).await, Status::SUCCESS);
    assert!(read(good, 0, data.len()).await == data);
}

pub(crate) const NO_DIGESTS: Digests = Digests {
    header: false,
    data: false,
};
pub(crate) const DIGESTS: Digests = Digests {
    header: true,
    data: true,
};

/// A host or a target without manners: a bare connection.
pub(crate) struct Raw {
    stream: TcpStream,
    unread: Vec<u8>,
    digests: Digests,
    /// Who is at the other end.
    peer: Sender,
}

impl Raw {
    pub(crate) fn open(target: &Target) -> Self {
        Self::open_at(target.address())
    }

    pub(crate) fn open_at(address: SocketAddr) -> Self {
        // On loopback this does not wait: the kernel takes the connection.
        let stream = TcpStream::connect(address).expect("a connection");
        Self::over(stream, Sender::Controller)
    }

    pub(crate) fn over(stream: TcpStream, peer: Sender) -> Self {
        stream.set_nonblocking(true).expect("non-blocking");
        stream.set_nodelay(true).expect("no delay");
        Self {
            stream,
            unread: Vec::new(),
            digests: NO_DIGESTS,
            peer,
        }
    }

    /// A target's side: the next host that connects, whose ICReq was read and not answered.
    pub(crate) async fn accept(listener: &std::net::TcpListener) -> Self {
        listener.set_nonblocking(true).expect("non-blocking");
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    reactor::readable(listener.as_fd()).await.expect("polled");
                }
                Err(error) => panic!("no host: {error}"),
            }
        };
        let mut raw = Self::over(stream, Sender::Host);
        let request = raw.pdu().await.expect("a request").0;
        assert!(matches!(request, Pdu::IcReq(_)), "{request:?}");
        raw
    }

    /// Says what the target agrees to, and goes by that.
    pub(crate) async fn agree(&mut self, response: IcResp) {
        let mut bytes = Vec::new();
        response.emit(&mut bytes);
        self.send(&bytes).await;
        self.digests = response.digests;
    }

    /// The bytes of a PDU with that data behind it, as this side has agreed to send them.
    pub(crate) fn encoded(&self, pdu: Pdu, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        pdu.emit(self.digests, data.len(), 0, &mut bytes);
        self.put_data(data, &mut bytes);
        bytes
    }

    /// Says that nothing more comes, and still reads.
    pub(crate) fn stop(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// A connection whose ICReq was answered.
    pub(crate) async fn initialized(target: &Target, digests: Digests) -> (Self, IcResp) {
        let mut raw = Self::open(target);
        raw.send(&ic_req(digests)).await;
        let (Pdu::IcResp(response), _) = raw.pdu().await.expect("an answer") else {
            panic!("not an ICResp");
        };
        raw.digests = digests;
        (raw, response)
    }

    /// A connection whose Connect has succeeded.
    pub(crate) async fn connected(target: &Target, digests: Digests) -> Self {
        let (mut raw, _) = Self::initialized(target, digests).await;
        assert_eq!(
            raw.command(connect_command(32, true), &[]).await.status,
            Status::SUCCESS
        );
        raw
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        // Closing a socket that lingers for no time throws away what it holds, and says so.
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(std::time::Duration::ZERO))
            .expect("a socket");
    }

    pub(crate) async fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    reactor::writable(self.stream.as_fd())
                        .await
                        .expect("polled");
                }
                // Whoever broke the rules may find the connection closed: `ended` tells.
                Err(_) => return,
            }
        }
    }

    /// A command capsule with that data in it; the SGL is the caller's.
    pub(crate) fn capsule(&self, sqe: Sqe, data: &[u8]) -> Vec<u8> {
        self.encoded(Pdu::Command(sqe), data)
    }

    pub(crate) fn h2c_data(&self, header: Data, data: &[u8]) -> Vec<u8> {
        self.encoded(Pdu::H2cData(header), data)
    }

    fn put_data(&self, data: &[u8], bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(data);
        if self.digests.data && !data.is_empty() {
            bytes.extend_from_slice(&digest(data));
        }
    }

    /// Sends a command and waits for its response.
    pub(crate) async fn command(&mut self, sqe: Sqe, data: &[u8]) -> Cqe {
        let capsule = self.capsule(sqe, data);
        self.send(&capsule).await;
        self.response().await
    }

    pub(crate) async fn response(&mut self) -> Cqe {
        match self.pdu().await.expect("a response").0 {
            Pdu::Response(cqe) => cqe,
            other => panic!("not a response: {other:?}"),
        }
    }

    async fn fill(&mut self, bytes: usize) -> Option<()> {
        while self.unread.len() < bytes {
            let mut more = [0; 65_536];
            match self.stream.read(&mut more) {
                Ok(0) => return None,
                Ok(count) => self.unread.extend_from_slice(&more[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    reactor::readable(self.stream.as_fd())
                        .await
                        .expect("polled");
                }
                Err(_) => return None,
            }
        }
        Some(())
    }

    /// The next bytes, whatever they are.
    pub(crate) async fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.fill(count).await.expect("so many bytes");
        self.unread.drain(..count).collect()
    }

    /// The next PDU and its data; None at the end.
    pub(crate) async fn pdu(&mut self) -> Option<(Pdu, Vec<u8>)> {
        self.fill(8).await?;
        let common = self.unread.first_chunk().expect("filled");
        let frame = Frame::parse(common, self.peer, self.digests, 0).expect("a PDU");
        let data_at = frame.whole_header_bytes() + frame.padding_bytes;
        let whole = data_at + frame.data_bytes + if frame.data_digest { 4 } else { 0 };
        self.fill(whole).await?;
        let rest = self.unread.split_off(whole);
        let bytes = std::mem::replace(&mut self.unread, rest);
        frame.check_header_digest(&bytes).expect("a right digest");
        let data = bytes[data_at..data_at + frame.data_bytes].to_vec();
        if frame.data_digest {
            assert_eq!(bytes[whole - 4..], digest(&data));
        }
        Some((Pdu::parse(&frame, &bytes).expect("a PDU"), data))
    }

    /// Waits until the target has closed the connection, whatever it says before that.
    pub(crate) async fn closed(&mut self) {
        while self.fill(self.unread.len() + 1).await.is_some() {}
    }

    /// Waits until the target has closed the connection; gives what it complained of, if it did.
    pub(crate) async fn ended(&mut self) -> Option<TermReq> {
        let mut complaint = None;
        while let Some((pdu, _)) = self.pdu().await {
            if let Pdu::C2hTermReq(request) = pdu {
                complaint = Some(request);
            }
        }
        complaint
    }
}

pub(crate) fn ic_req(digests: Digests) -> Vec<u8> {
    let mut bytes = Vec::new();
    IcReq {
        alignment: 0,
        digests,
        max_r2t: 0,
    }
    .emit(&mut bytes);
    bytes
}

/// A command of the test's language whose data the transport moves.
pub(crate) fn transported(opcode: u8, cid: u16, offset: usize, len: usize) -> Sqe {
    let mut sqe = command(opcode, offset, len);
    sqe.set_cid(cid);
    sqe.set_sgl(&SglDescriptor::Transport { length: len as u32 });
    sqe
}

/// A command of the test's language whose data lies in its capsule.
pub(crate) fn in_capsule(opcode: u8, cid: u16, offset: usize, len: usize) -> Sqe {
    let mut sqe = transported(opcode, cid, offset, len);
    sqe.set_sgl(&SglDescriptor::InCapsule {
        offset: 0,
        length: len as u32,
    });
    sqe
}
