//! A stream of bytes as PDUs: no sockets, no clock.
//!
//! Guarantees: however the stream is cut into pieces, the same PDUs come out in the same order; at most
//! one header is kept between two pieces, and data goes straight to where its owner wants it; no byte
//! is taken before the header in front of it was judged.

use nvme::tcp::{
    COMMON_HEADER_BYTES, DIGEST_BYTES, Digests, FatalError, Frame, HEADER_BYTES_MAX, Pdu, Sender,
    digest,
};
use reactor::Buffer;

/// The longest header with its digest.
const WHOLE_HEADER_BYTES_MAX: usize = HEADER_BYTES_MAX + DIGEST_BYTES;
/// This side asks for no alignment of data: HPDA and CPDA are 0.
const ALIGNMENT: u8 = 0;

/// Where the data of a PDU goes.
#[derive(Debug)]
pub(super) enum Place {
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
    pub(super) place: Place,
    /// Where in the place the first byte goes; all of it has room behind that.
    pub(super) start: usize,
    /// What the owner wants to know of it again.
    pub(super) tag: T,
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

    /// The data of a PDU is there; `intact` says whether its digest agrees, if there is one.
    fn data(&self, sink: Sink<Self::Tag>, intact: bool) -> Result<(), FatalError>;
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
    has_digest: bool,
}

impl Place {
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
            body.data_left -= bytes.min(body.data_left);
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
            self.body = Some(Body {
                sink,
                padding_left: frame.padding_bytes,
                data_bytes: frame.data_bytes,
                data_left: frame.data_bytes,
                digest: [0; DIGEST_BYTES],
                digest_left: usize::from(frame.data_digest) * DIGEST_BYTES,
                has_digest: frame.data_digest,
            });
        }
        Ok(())
    }

    /// Hands the data over once all of it is there.
    fn end_body<O: Owner<Tag = T>>(&mut self, owner: &O) -> Result<(), FatalError> {
        let done = self
            .body
            .take_if(|body| body.padding_left == 0 && body.data_left == 0 && body.digest_left == 0);
        let Some(mut body) = done else { return Ok(()) };
        let intact = body.is_intact();
        match body.sink {
            Some(sink) => owner.data(sink, intact),
            None => Ok(()),
        }
    }
}

impl<T> Body<T> {
    /// The part of the place that is still to be filled.
    fn rest(&mut self) -> &mut [u8] {
        let (from, to) = (self.data_bytes - self.data_left, self.data_bytes);
        match &mut self.sink {
            Some(Sink { place, start, .. }) => place
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
        self.data_left -= data.len();
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

    /// Whether the data's digest agrees, as far as there is one and the data was kept.
    fn is_intact(&mut self) -> bool {
        let (bytes, expected) = (self.data_bytes, self.digest);
        if !self.has_digest {
            return true;
        }
        match &mut self.sink {
            Some(Sink { place, start, .. }) if !matches!(place, Place::Nowhere) => place
                .bytes()
                .get(*start..*start + bytes)
                .is_some_and(|data| digest(data) == expected),
            _ => true,
        }
    }
}
