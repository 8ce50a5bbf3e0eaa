//! A host over TCP without manners: a socket, and PDUs that are right unless the test says otherwise.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
};

use nvme::{
    Cqe, SglDescriptor, Sqe,
    fabrics::{CNTLID_DYNAMIC, ConnectCommand, ConnectData, FabricsCommand},
    properties,
    tcp::{
        COMMON_HEADER_BYTES, Data, Digests, FatalStatus, Frame, HEADER_BYTES_MAX, IcReq, IcResp,
        Pdu, Sender, TermReq, digest,
    },
};
use tests::wait_for;

use super::{NQN, PATIENCE};

pub const PLAIN: Digests = Digests {
    header: false,
    data: false,
};
pub const CHECKED: Digests = Digests {
    header: true,
    data: true,
};

/// What the target sent.
#[derive(Debug)]
pub enum Answer {
    Pdu(Pdu, Vec<u8>),
    /// The connection is over, after this complaint if there was one.
    Over(Option<TermReq>),
}

/// One connection.
pub struct Raw {
    pub socket: TcpStream,
    pub digests: Digests,
    pub maxh2cdata: usize,
    alignment: u8,
    next_cid: u16,
}

impl Raw {
    /// Connected, and nothing said yet.
    pub fn open(address: SocketAddr) -> Self {
        let socket = wait_for("a connection", PATIENCE, || {
            TcpStream::connect(address).ok()
        });
        socket.set_nodelay(true).expect("an option of every socket");
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("an option of every socket");
        socket
            .set_write_timeout(Some(PATIENCE))
            .expect("an option of every socket");
        Self {
            socket,
            digests: PLAIN,
            maxh2cdata: 0,
            alignment: 0,
            next_cid: 0,
        }
    }

    /// After ICReq and ICResp.
    pub fn initialized(address: SocketAddr, digests: Digests) -> Self {
        let mut raw = Self::open(address);
        raw.send(&request(digests, 0));
        let response = raw.initialize();
        assert_eq!(response.digests, digests, "the target offers digests");
        raw.digests = digests;
        raw
    }

    /// Takes the ICResp.
    pub fn initialize(&mut self) -> IcResp {
        match self.answer() {
            Answer::Pdu(Pdu::IcResp(response), _) => {
                self.maxh2cdata = response.max_h2c_data as usize;
                self.alignment = response.alignment;
                response
            }
            other => panic!("{other:?} instead of ICResp"),
        }
    }

    /// An admin queue whose controller is enabled, and the controller's number.
    pub fn admin(
        address: SocketAddr,
        digests: Digests,
        host: &initiator::Host,
        kato_ms: u32,
    ) -> (Self, u16) {
        let mut raw = Self::initialized(address, digests);
        let cqe = raw.connect(host, 0, CNTLID_DYNAMIC, kato_ms);
        let enable = FabricsCommand::property_set(properties::CC, false, 0x0046_0001);
        assert!(raw.call(enable, &[]).status.is_success());
        (raw, cqe.result as u16)
    }

    /// An admin queue and an I/O queue of a new host, which may be silent as long as it likes.
    pub fn attached(address: SocketAddr, digests: Digests) -> [Self; 2] {
        Self::attached_with(address, digests, 0)
    }

    /// The same with a keep-alive timeout.
    pub fn attached_with(address: SocketAddr, digests: Digests, kato_ms: u32) -> [Self; 2] {
        let host = initiator::Host::generate();
        let (admin, cntlid) = Self::admin(address, digests, &host, kato_ms);
        let mut io = Self::initialized(address, digests);
        io.connect(&host, 1, cntlid, 0);
        [admin, io]
    }

    /// A Connect that succeeds.
    pub fn connect(&mut self, host: &initiator::Host, qid: u16, cntlid: u16, kato_ms: u32) -> Cqe {
        let command = ConnectCommand {
            record_format: 0,
            qid,
            sqsize: 31,
            attributes: 0,
            kato_ms,
        };
        let cqe = self.call(command.to_sqe(), &connect_data(host, cntlid));
        assert!(cqe.status.is_success(), "Connect: {:?}", cqe.status);
        cqe
    }

    /// A command with its data in the capsule; gives its completion.
    pub fn call(&mut self, sqe: Sqe, data: &[u8]) -> Cqe {
        let cid = self.begin(sqe, data);
        let cqe = self.completion();
        assert_eq!(cqe.cid, cid, "the answer of another command");
        cqe
    }

    /// Sends a command with its data in the capsule; gives its number.
    pub fn begin(&mut self, mut sqe: Sqe, data: &[u8]) -> u16 {
        self.next_cid += 1;
        sqe.set_cid(self.next_cid);
        sqe.set_sgl(&SglDescriptor::InCapsule {
            offset: 0,
            length: data.len() as u32,
        });
        let bytes = self.capsule(sqe, data);
        self.send(&bytes);
        sqe.cid()
    }

    /// Sends a command whose data the transport shall bring; gives its number.
    pub fn begin_transport(&mut self, mut sqe: Sqe, length: u32) -> u16 {
        self.next_cid += 1;
        sqe.set_cid(self.next_cid);
        sqe.set_sgl(&SglDescriptor::Transport { length });
        let bytes = self.capsule(sqe, &[]);
        self.send(&bytes);
        sqe.cid()
    }

    /// A command capsule, whatever its descriptor says.
    pub fn capsule(&self, sqe: Sqe, data: &[u8]) -> Vec<u8> {
        self.with_data(Pdu::Command(sqe), data)
    }

    /// Data for the target.
    pub fn h2c_data(&self, header: Data, data: &[u8]) -> Vec<u8> {
        self.with_data(Pdu::H2cData(header), data)
    }

    fn with_data(&self, pdu: Pdu, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        pdu.emit(self.digests, data.len(), self.alignment, &mut bytes);
        bytes.extend_from_slice(data);
        if self.digests.data && !data.is_empty() {
            bytes.extend_from_slice(&digest(data));
        }
        bytes
    }

    /// Sends bytes. That the target has hung up is seen by whoever waits for its answer.
    pub fn send(&mut self, bytes: &[u8]) {
        match self.socket.write_all(bytes) {
            Err(error) if !is_over(error.kind()) => panic!("send: {error}"),
            _ => {}
        }
    }

    /// The next PDU.
    pub fn answer(&mut self) -> Answer {
        let mut header = [0; HEADER_BYTES_MAX];
        if !self.fill(&mut header[..COMMON_HEADER_BYTES]) {
            return Answer::Over(None);
        }
        let common = header.first_chunk().expect("8 bytes");
        let frame = Frame::parse(common, Sender::Controller, self.digests, 0)
            .unwrap_or_else(|error| panic!("the target sent {error}: {common:02x?}"));
        let whole = frame.whole_header_bytes();
        let mut rest = vec![0; whole - COMMON_HEADER_BYTES];
        if !self.fill(&mut rest) {
            return Answer::Over(None);
        }
        header[COMMON_HEADER_BYTES..whole].copy_from_slice(&rest);
        let pdu = Pdu::parse(&frame, &header[..whole]).expect("what a target sends is right");
        let mut data = vec![0; frame.padding_bytes + frame.data_bytes];
        let mut check = vec![0; usize::from(frame.data_digest) * 4];
        if !self.fill(&mut data) || !self.fill(&mut check) {
            return Answer::Over(None);
        }
        match pdu {
            Pdu::C2hTermReq(complaint) => {
                while self.fill(&mut [0]) {}
                Answer::Over(Some(complaint))
            }
            pdu => Answer::Pdu(pdu, data.split_off(frame.padding_bytes)),
        }
    }

    /// False when the connection ends first.
    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        match self.socket.read_exact(bytes) {
            Ok(()) => true,
            Err(error) if is_over(error.kind()) => false,
            Err(error) => panic!("the target neither answers nor hangs up: {error}"),
        }
    }

    /// The next completion; data before it are passed over.
    pub fn completion(&mut self) -> Cqe {
        loop {
            match self.answer() {
                Answer::Pdu(Pdu::Response(cqe), _) => return cqe,
                Answer::Pdu(Pdu::C2hData(_), _) => {}
                other => panic!("{other:?} instead of a completion"),
            }
        }
    }

    /// The target ends the connection, whatever it sends before; gives its complaint.
    pub fn ends(&mut self) -> Option<FatalStatus> {
        loop {
            if let Answer::Over(complaint) = self.answer() {
                return complaint.and_then(|complaint| FatalStatus::from_number(complaint.status));
            }
        }
    }

    /// The connection lives and both ends agree where in the stream they are.
    pub fn is_in_step(&mut self) {
        let cqe = self.call(Sqe::new(nvme::io::OPCODE_FLUSH).with_nsid(1), &[]);
        assert!(cqe.status.is_success(), "{:?}", cqe.status);
    }
}

fn is_over(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
    )
}

/// An ICReq.
pub fn request(digests: Digests, alignment: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let request = IcReq {
        alignment,
        digests,
        max_r2t: 0,
    };
    request.emit(&mut bytes);
    bytes
}

/// The data of a Connect.
pub fn connect_data(host: &initiator::Host, cntlid: u16) -> Vec<u8> {
    let data = ConnectData {
        host_id: host.id,
        cntlid,
        subsystem: NQN.parse().expect("a name"),
        host: host.nqn.clone(),
    };
    data.encode().to_vec()
}
