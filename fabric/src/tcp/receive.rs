//! A stream of bytes as PDUs: no sockets, no clock.
//!
//! Guarantees: however the stream is cut into pieces, the same PDUs come out in the same order; at most
//! one header is kept between two pieces, and data goes straight to where its owner wants it; no byte
//! is taken before the header in front of it was judged; the digest of data is computed piece by piece as it
//! arrives, while the piece is in the cache, and never again: who needs the digests of its blocks gets those of this pass.

use nvme::tcp::{
    BLOCK_BYTES, BlockDigests, COMMON_HEADER_BYTES, DIGEST_BYTES, Digests, FatalError, Frame,
    HEADER_BYTES_MAX, Pdu, PieceDigest, Sender,
};
use reactor::Buffer;

/// The longest header with its digest.
const WHOLE_HEADER_BYTES_MAX: usize = HEADER_BYTES_MAX + DIGEST_BYTES;
/// This side asks for no alignment of data: HPDA and CPDA are 0.
const ALIGNMENT: u8 = 0;

/// Where the data of a PDU goes.
#[derive(Debug)]
pub(super) enum Destination {
    /// Into a buffer of a pool.
    Buffer(Buffer),
    /// Into memory of the connection.
    Heap(Box<[u8]>),
    /// Nowhere: it only has to be passed over.
    Nowhere,
}

/// Where the data of a PDU goes, and what it is.
#[derive(Debug)]
pub(super) struct Sink<T> {
    pub(super) destination: Destination,
    /// Where in the destination the first byte goes; all of it has room behind that.
    pub(super) start: usize,
    /// Whether the owner wants the digests of its blocks, where there is one of the data.
    pub(super) wants_checksums: bool,
    /// What the owner wants to know of it again.
    pub(super) tag: T,
}

/// What the digest of data says.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// It does not agree.
    pub(super) is_damaged: bool,
    /// The CRC-32C of each block of 4 KiB: of whole blocks, from a block of the destination on, with a digest that agrees.
    pub(super) checksums: Option<Vec<u32>>,
}

/// The digest of data that arrives.
enum Computed {
    Whole(PieceDigest),
    Blocks(BlockDigests),
}

/// Whose PDUs they are.
pub(super) trait Owner {
    /// What belongs to data on its way.
    type Tag;

    /// The digests that are in use now.
    fn digests(&self) -> Digests;

    /// A header is there and right. If data follows (`data_bytes` > 0), says where it goes; None
    /// passes over it.
    fn pdu(&self, pdu: Pdu, data_bytes: usize) -> Result<Option<Sink<Self::Tag>>, FatalError>;

    /// The data of a PDU is there.
    fn data(&self, sink: Sink<Self::Tag>, checked: Checked) -> Result<(), FatalError>;
}

/// The receiving end of a connection.
pub(super) struct Receiver<T> {
    sender: Sender,
    /// The beginning of a header whose rest has not arrived; or the header that was in error.
    header: [u8; WHOLE_HEADER_BYTES_MAX],
    header_bytes: usize,
    body: Option<Body<T>>,
}

/// What follows a header.
struct Body<T> {
    sink: Option<Sink<T>>,
    padding_left: usize,
    data_bytes: usize,
    data_left: usize,
    digest: [u8; DIGEST_BYTES],
    digest_left: usize,
    /// Of the data that is there, if its digest follows and it is kept.
    computed: Option<Computed>,
}

impl Destination {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Heap(bytes) => bytes,
            Self::Nowhere => &mut [],
        }
    }
}

impl<T> Receiver<T> {
    /// For the PDUs of that sender.
    pub(super) fn new(sender: Sender) -> Self {
        Self {
            sender,
            header: [0; WHOLE_HEADER_BYTES_MAX],
            header_bytes: 0,
            body: None,
        }
    }

    /// Whether a PDU has arrived in part.
    pub(super) fn is_within_pdu(&self) -> bool {
        self.header_bytes > 0 || self.body.is_some()
    }

    /// What is known of the header that was in error, after an error.
    pub(super) fn offender(&self) -> &[u8] {
        &self.header[..self.header_bytes]
    }

    /// Where the next bytes of the stream belong, if that is known: receive them there, and say so with
    /// [`filled`](Self::filled).
    pub(super) fn direct(&mut self) -> &mut [u8] {
        match &mut self.body {
            Some(body) if body.padding_left == 0 => body.rest(),
            _ => &mut [],
        }
    }

    /// So many bytes were received to where [`direct`](Self::direct) said.
    pub(super) fn filled<O: Owner<Tag = T>>(
        &mut self,
        bytes: usize,
        owner: &O,
    ) -> Result<(), FatalError> {
        if let Some(body) = &mut self.body {
            body.arrived(bytes);
        }
        self.end_body(owner)
    }

    /// The next bytes of the stream.
    pub(super) fn feed<O: Owner<Tag = T>>(
        &mut self,
        mut bytes: &[u8],
        owner: &O,
    ) -> Result<(), FatalError> {
        while !bytes.is_empty() {
            bytes = match &mut self.body {
                Some(body) => {
                    let rest = body.take(bytes);
                    self.end_body(owner)?;
                    rest
                }
                None => self.take_header(bytes, owner)?,
            };
        }
        Ok(())
    }

    /// Takes a header, or as much of one as there is; gives the bytes behind it.
    fn take_header<'a, O: Owner<Tag = T>>(
        &mut self,
        bytes: &'a [u8],
        owner: &O,
    ) -> Result<&'a [u8], FatalError> {
        if self.header_bytes == 0
            && let Some(common) = bytes.first_chunk()
        {
            // The usual case: the whole header lies in one piece.
            let judged = Frame::parse(common, self.sender, owner.digests(), ALIGNMENT);
            let taken = judged.map_or(COMMON_HEADER_BYTES, |frame| frame.whole_header_bytes());
            if let (Ok(frame), Some(header)) = (judged, bytes.get(..taken)) {
                if let Err(error) = self.begin(frame, header, owner) {
                    self.keep(header);
                    return Err(error);
                }
                return Ok(&bytes[taken..]);
            }
            if let Err(error) = judged {
                self.keep(&bytes[..bytes.len().min(HEADER_BYTES_MAX)]);
                return Err(error);
            }
        }
        let mut rest = bytes;
        let mut needed = COMMON_HEADER_BYTES;
        loop {
            let missing = needed.saturating_sub(self.header_bytes).min(rest.len());
            let (now, later) = rest.split_at(missing);
            self.header[self.header_bytes..self.header_bytes + missing].copy_from_slice(now);
            self.header_bytes += missing;
            rest = later;
            if self.header_bytes < needed {
                return Ok(rest);
            }
            let Some(common) = self.header.first_chunk() else {
                return Ok(rest);
            };
            let frame = Frame::parse(common, self.sender, owner.digests(), ALIGNMENT)?;
            needed = frame.whole_header_bytes();
            if self.header_bytes == needed {
                let header = self.header;
                self.begin(frame, &header[..needed], owner)?;
                self.header_bytes = 0;
                return Ok(rest);
            }
        }
    }

    /// Keeps a header that was in error, for the complaint.
    fn keep(&mut self, header: &[u8]) {
        let bytes = header.len().min(self.header.len());
        self.header[..bytes].copy_from_slice(&header[..bytes]);
        self.header_bytes = bytes;
    }

    /// A whole header is there.
    fn begin<O: Owner<Tag = T>>(
        &mut self,
        frame: Frame,
        header: &[u8],
        owner: &O,
    ) -> Result<(), FatalError> {
        frame.check_header_digest(header)?;
        let pdu = Pdu::parse(&frame, header)?;
        let sink = owner.pdu(pdu, frame.data_bytes)?;
        if frame.data_bytes > 0 {
            let kept = sink
                .as_ref()
                .filter(|sink| !matches!(sink.destination, Destination::Nowhere));
            let checked = kept.filter(|_| frame.data_digest);
            let computed = checked.map(|sink| Computed::new(sink, frame.data_bytes));
            self.body = Some(Body {
                sink,
                padding_left: frame.padding_bytes,
                data_bytes: frame.data_bytes,
                data_left: frame.data_bytes,
                digest: [0; DIGEST_BYTES],
                digest_left: usize::from(frame.data_digest) * DIGEST_BYTES,
                computed,
            });
        }
        Ok(())
    }

    /// Hands the data over once all of it is there.
    fn end_body<O: Owner<Tag = T>>(&mut self, owner: &O) -> Result<(), FatalError> {
        let done = self
            .body
            .take_if(|body| body.padding_left == 0 && body.data_left == 0 && body.digest_left == 0);
        let Some(body) = done else { return Ok(()) };
        let checked = match body.computed {
            Some(computed) => computed.checked(body.digest),
            None => Checked::default(),
        };
        match body.sink {
            Some(sink) => owner.data(sink, checked),
            None => Ok(()),
        }
    }
}

impl Computed {
    fn new<T>(sink: &Sink<T>, bytes: usize) -> Self {
        let is_whole = sink.start.is_multiple_of(BLOCK_BYTES) && bytes.is_multiple_of(BLOCK_BYTES);
        match sink.wants_checksums && is_whole {
            true => Self::Blocks(BlockDigests::new(bytes)),
            false => Self::Whole(PieceDigest::default()),
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Whole(digest) => digest.add(bytes),
            Self::Blocks(digests) => digests.add(bytes),
        }
    }

    /// What it says beside the one that was sent.
    fn checked(self, sent: [u8; DIGEST_BYTES]) -> Checked {
        let value = match &self {
            Self::Whole(digest) => digest.value(),
            Self::Blocks(digests) => digests.value(),
        };
        let is_damaged = value != sent;
        let checksums = match self {
            Self::Blocks(digests) if !is_damaged => Some(digests.into_blocks()),
            _ => None,
        };
        Checked {
            is_damaged,
            checksums,
        }
    }
}

impl<T> Body<T> {
    /// The part of the destination that is still to be filled.
    fn rest(&mut self) -> &mut [u8] {
        let (from, to) = (self.data_bytes - self.data_left, self.data_bytes);
        match &mut self.sink {
            Some(Sink {
                destination, start, ..
            }) => destination
                .bytes()
                .get_mut(*start + from..*start + to)
                .unwrap_or_default(),
            None => &mut [],
        }
    }

    /// Takes what belongs to it; gives what is behind.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (_padding, bytes) = bytes.split_at(self.padding_left.min(bytes.len()));
        self.padding_left -= _padding.len();
        let (data, bytes) = bytes.split_at(self.data_left.min(bytes.len()));
        let rest = self.rest();
        if rest.len() >= data.len() {
            rest[..data.len()].copy_from_slice(data);
        }
        self.arrived(data.len());
        if self.data_left > 0 {
            return bytes;
        }
        let (digest, bytes) = bytes.split_at(self.digest_left.min(bytes.len()));
        let at = DIGEST_BYTES - self.digest_left;
        if !digest.is_empty() {
            self.digest[at..at + digest.len()].copy_from_slice(digest);
        }
        self.digest_left -= digest.len();
        bytes
    }

    /// So many more bytes of the data are where they belong.
    fn arrived(&mut self, bytes: usize) {
        let bytes = bytes.min(self.data_left);
        if let Some(mut computed) = self.computed.take() {
            let rest = self.rest();
            computed.add(&rest[..bytes.min(rest.len())]);
            self.computed = Some(computed);
        }
        self.data_left -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use nvme::tcp::{Data, FatalStatus, PduType, TermReq};
    use nvme::{Sqe, tcp};
    use proptest::prelude::*;

    use super::*;

    /// Notes everything; data goes to a heap, at an offset, or nowhere.
    struct Notes {
        digests: Digests,
        seen: RefCell<Vec<Seen>>,
    }

    #[derive(Clone, Debug, PartialEq)]
    enum Seen {
        Pdu(Pdu, usize),
        Data(u16, Vec<u8>, bool, Option<Vec<u32>>),
    }

    const START: usize = 3;

    /// Where the data of a tag goes: to a block of its destination, or behind its beginning.
    fn start_of(tag: u16) -> usize {
        match tag % 8 {
            6.. => 0,
            _ => START,
        }
    }

    impl Owner for Notes {
        type Tag = u16;

        fn digests(&self) -> Digests {
            self.digests
        }

        fn pdu(&self, pdu: Pdu, data_bytes: usize) -> Result<Option<Sink<u16>>, FatalError> {
            self.seen.borrow_mut().push(Seen::Pdu(pdu, data_bytes));
            let tag = match pdu {
                Pdu::Command(sqe) => sqe.cid(),
                Pdu::H2cData(data) => data.cid,
                _ => return Ok(None),
            };
            let destination = match tag % 4 {
                0 => return Ok(None),
                1 => Destination::Nowhere,
                _ => Destination::Heap(vec![0; START + data_bytes + 2].into_boxed_slice()),
            };
            let start = start_of(tag);
            Ok((data_bytes > 0).then_some(Sink {
                destination,
                start,
                wants_checksums: true,
                tag,
            }))
        }

        fn data(&self, sink: Sink<u16>, checked: Checked) -> Result<(), FatalError> {
            let bytes = match sink.destination {
                Destination::Heap(bytes) => bytes.to_vec(),
                Destination::Buffer(_) | Destination::Nowhere => Vec::new(),
            };
            self.seen.borrow_mut().push(Seen::Data(
                sink.tag,
                bytes,
                !checked.is_damaged,
                checked.checksums,
            ));
            Ok(())
        }
    }

    /// PDUs of a host with so many bytes of data each, in one stream; the digest of every data whose
    /// tag is 3 is damaged.
    fn stream(digests: Digests, pdus: &[(u16, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(tag, len) in pdus {
            let pdu = match tag % 3 {
                0 if len > 0 => Pdu::H2cData(Data {
                    cid: tag,
                    ttag: 0,
                    offset: 0,
                    length: len as u32,
                    last: true,
                    success: false,
                }),
                _ => {
                    let mut sqe = Sqe::new(1);
                    sqe.set_cid(tag);
                    Pdu::Command(sqe)
                }
            };
            pdu.emit(digests, len, 0, &mut bytes);
            let data: Vec<u8> = (0..len)
                .map(|at| (at * 7 + usize::from(tag)) as u8)
                .collect();
            bytes.extend_from_slice(&data);
            if digests.data && len > 0 {
                let mut check = tcp::digest(&data);
                check[0] ^= u8::from(tag == 3);
                bytes.extend_from_slice(&check);
            }
        }
        bytes
    }

    /// Feeds the stream in pieces of these sizes; `direct` says whether data goes straight to its destination.
    fn taken(bytes: &[u8], digests: Digests, cuts: &[usize], direct: bool) -> (Vec<Seen>, bool) {
        let notes = Notes {
            digests,
            seen: RefCell::default(),
        };
        let mut receiver = Receiver::new(Sender::Host);
        let mut cuts = cuts.iter().copied().cycle();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
            rest = later;
            let destination = receiver.direct();
            let straight = if direct {
                destination.len().min(now.len())
            } else {
                0
            };
            destination[..straight].copy_from_slice(&now[..straight]);
            if straight > 0 {
                receiver.filled(straight, &notes).expect("a good stream");
            }
            receiver
                .feed(&now[straight..], &notes)
                .expect("a good stream");
        }
        (notes.seen.into_inner(), receiver.is_within_pdu())
    }

    proptest! {
        #[test]
        fn however_a_stream_is_cut_the_same_comes_out(
            pdus in prop::collection::vec((0..40_u16, prop_oneof![Just(0), 1..9_usize, 100..3000_usize, Just(8192)]), 1..12),
            cuts in prop::collection::vec(prop_oneof![1..6_usize, 60..90_usize, 500..9000_usize], 1..8),
            header: bool, data: bool, direct: bool,
        ) {
            let digests = Digests { header, data };
            let bytes = stream(digests, &pdus);
            let (whole, _) = taken(&bytes, digests, &[bytes.len()], false);
            let (cut, within) = taken(&bytes, digests, &cuts, direct);
            prop_assert!(!within);
            prop_assert_eq!(&cut, &whole);
            let mut arrived = whole.iter();
            for (tag, len) in pdus {
                prop_assert!(matches!(arrived.next(), Some(Seen::Pdu(_, bytes)) if *bytes == len));
                if len == 0 || tag % 4 == 0 {
                    continue;
                }
                let Some(Seen::Data(of, bytes, intact, checksums)) = arrived.next() else {
                    panic!("no data of {tag}");
                };
                let start = start_of(tag);
                let is_told = data && tag != 3 && tag % 4 > 1 && start == 0 && len == 8192;
                let blocks = bytes.chunks(BLOCK_BYTES).take(len / BLOCK_BYTES);
                let of_blocks = blocks.map(|block| u32::from_le_bytes(tcp::digest(block)));
                prop_assert_eq!(checksums.clone(), is_told.then(|| of_blocks.collect::<Vec<u32>>()));
                prop_assert_eq!(*of, tag);
                prop_assert_eq!(*intact, !(data && tag == 3));
                if tag % 4 > 1 {
                    prop_assert_eq!(bytes.len(), START + len + 2);
                    for (at, byte) in bytes.iter().enumerate() {
                        let inside = (start..start + len).contains(&at);
                        let expected = if inside { ((at - start) * 7 + usize::from(tag)) as u8 } else { 0 };
                        prop_assert_eq!(*byte, expected);
                    }
                }
            }
        }

        #[test]
        fn any_bytes_are_pdus_or_an_error_with_the_header_that_caused_it(
            mut bytes in prop::collection::vec(any::<u8>(), 1..600),
            good in prop::collection::vec((0..9_u16, 0..40_usize), 0..3),
            cuts in prop::collection::vec(1..80_usize, 1..8), header: bool,
        ) {
            let digests = Digests { header, data: header };
            let mut stream = stream(digests, &good);
            let garbage_at = stream.len();
            stream.append(&mut bytes);
            let notes = Notes { digests, seen: RefCell::default() };
            let mut receiver = Receiver::new(Sender::Host);
            let mut cuts = cuts.iter().copied().cycle();
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                rest = later;
                if receiver.feed(now, &notes).is_err() {
                    let offender = receiver.offender();
                    prop_assert!(offender.len() >= COMMON_HEADER_BYTES);
                    prop_assert!(stream[garbage_at..].windows(offender.len()).any(|at| at == offender));
                    break;
                }
            }
        }
    }

    #[test]
    fn what_follows_a_violation_in_the_same_piece_is_not_executed() {
        let digests = Digests::default();
        let mut bytes = stream(digests, &[(1, 0)]);
        bytes[2] = 0;
        bytes.extend(stream(digests, &[(2, 0)]));
        let notes = Notes {
            digests,
            seen: RefCell::default(),
        };
        let mut receiver = Receiver::new(Sender::Host);
        let error = receiver.feed(&bytes, &notes).expect_err("a wrong header");
        assert_eq!(
            (error.status, error.information),
            (FatalStatus::InvalidHeaderField, 2)
        );
        assert!(notes.seen.borrow().is_empty());
        let mut complaint = Vec::new();
        TermReq::from(error).emit(PduType::C2hTermReq, receiver.offender(), &mut complaint);
        assert_eq!(complaint[24..24 + 72], bytes[..72]);
    }
}
