//! The handshake: what a client asks for, option by option, and what it is answered (fixed newstyle).
//!
//! Guarantees: whatever the options say, no answer is longer than a bound; an export is given only under its own name or
//! none; metadata contexts hold only after structured replies, and only those of the last time that some were set.

use thiserror::Error;
use uuid::Uuid;

use crate::wire::{
    BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, GREETING, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, export_flag,
};

/// Bytes of what the server says first.
pub const GREETING_BYTES: usize = 18;
/// Bytes before the data of an option.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Data of an option that are looked at. Longer ones are skipped, and refused.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Data of an option that are skipped. With longer ones the connection ends.
pub const OPTION_BYTES_SKIPPED_MAX: u32 = 1 << 20;
/// Options of one handshake.
const OPTIONS_MAX: u32 = 256;
/// Contexts that a client may choose.
const CONTEXTS_MAX: usize = 16;
/// Queries of one option.
const QUERIES_MAX: u32 = 64;
/// Contexts that one answer names.
const CONTEXTS_LISTED_MAX: usize = 4096;

/// Fixed newstyle, and no padding: the same bits for server and client.
const FIXED_NEWSTYLE: u32 = 1;
const NO_ZEROES: u32 = 1 << 1;

/// The context that says where the export has data.
const ALLOCATION: &str = "base:allocation";
/// What the name of a context begins with that says what changed since a snapshot.
const CHANGED: &str = "qemu:dirty-bitmap:";

mod option {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const LIST: u32 = 3;
    pub(super) const STARTTLS: u32 = 5;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
    pub(super) const STRUCTURED_REPLY: u32 = 8;
    pub(super) const LIST_META_CONTEXT: u32 = 9;
    pub(super) const SET_META_CONTEXT: u32 = 10;
}

mod reply {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    pub(super) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(super) const UNSUPPORTED: u32 = ERROR + 1;
    pub(super) const POLICY: u32 = ERROR + 2;
    pub(super) const INVALID: u32 = ERROR + 3;
    pub(super) const UNKNOWN: u32 = ERROR + 6;
    pub(super) const TOO_BIG: u32 = ERROR + 9;
}

mod info {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const DESCRIPTION: u16 = 2;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

/// What a server has to offer at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The name of the export. No name means it too.
    pub name: String,
    /// Bytes of the export.
    pub size_bytes: u64,
    /// It takes no writes.
    pub read_only: bool,
    /// The snapshots of the same volume.
    pub snapshots: Vec<(String, Uuid)>,
}

/// What a client chose to be told about parts of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Context {
    /// Where it has data.
    Allocation,
    /// What changed since a snapshot.
    ChangedSince(Uuid),
}

/// What client and server agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Replies are structured.
    pub structured: bool,
    /// The contexts; each one's number is its place.
    pub contexts: Vec<Context>,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another option.
    Option,
    /// Requests.
    Requests(Agreed),
    /// Nothing: the client goes.
    Goodbye,
}

/// Why a handshake ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Ended {
    /// Flags that nobody knows.
    #[error("flags of a client that are unknown: {0:#x}")]
    Flags(u32),
    /// What should be an option is none.
    #[error("what should be an option has no magic number")]
    NoOption,
    /// More data than can be skipped.
    #[error("an option of {0} bytes")]
    TooLong(u32),
    /// More options than a handshake takes.
    #[error("more than {OPTIONS_MAX} options")]
    TooMany,
    /// A client of the first newstyle, which knows no answers to options.
    #[error("option {0} of a client that understands no answer")]
    NotFixed(u32),
    /// There is no such export, and this option has no answer that says so.
    #[error("an export that does not exist")]
    NoExport,
}

/// What the server says first.
#[must_use]
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&GREETING.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[17] = (FIXED_NEWSTYLE | NO_ZEROES) as u8;
    bytes
}

/// The number of an option, and the bytes of its data.
///
/// # Errors
/// The connection cannot go on.
pub fn parse_option(header: &[u8; OPTION_HEADER_BYTES]) -> Result<(u32, u32), Ended> {
    let [magic @ .., o0, o1, o2, o3, l0, l1, l2, l3] = *header;
    if u64::from_be_bytes(magic) != OPTION_MAGIC {
        return Err(Ended::NoOption);
    }
    let len = u32::from_be_bytes([l0, l1, l2, l3]);
    match len > OPTION_BYTES_SKIPPED_MAX {
        true => Err(Ended::TooLong(len)),
        false => Ok((u32::from_be_bytes([o0, o1, o2, o3]), len)),
    }
}

/// Whether the answer to an option names snapshots.
#[must_use]
pub fn asks_for_snapshots(option: u32) -> bool {
    [option::LIST_META_CONTEXT, option::SET_META_CONTEXT].contains(&option)
}

/// Why an option is refused: a kind of answer, and a text.
type Refusal = (u32, String);

fn invalid(text: &str) -> Refusal {
    (reply::INVALID, text.to_owned())
}

/// A handshake under way.
#[derive(Clone, Debug)]
pub struct Handshake {
    is_fixed: bool,
    no_zeroes: bool,
    options: u32,
    agreed: Agreed,
}

impl Handshake {
    /// The client answered the greeting.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn begin(client_flags: [u8; 4]) -> Result<Self, Ended> {
        let flags = u32::from_be_bytes(client_flags);
        if flags & !(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(Ended::Flags(flags));
        }
        Ok(Self {
            is_fixed: flags & FIXED_NEWSTYLE != 0,
            no_zeroes: flags & NO_ZEROES != 0,
            options: 0,
            agreed: Agreed::default(),
        })
    }

    /// Answers an option; without data if there were too many. `offer` is what there is now, if it can be used.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn option(
        &mut self,
        option: u32,
        data: Option<&[u8]>,
        offer: Option<&Offer>,
        out: &mut Vec<u8>,
    ) -> Result<Next, Ended> {
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(Ended::TooMany);
        }
        if option == option::EXPORT_NAME {
            return self.export_name(data, offer, out);
        }
        if !self.is_fixed {
            return Err(Ended::NotFixed(option));
        }
        let begin = out.len();
        let outcome = match data {
            _ if option == option::ABORT => Ok(Next::Goodbye),
            Some(data) => self.answer(option, Fields(data), offer, out),
            None => Err((reply::TOO_BIG, "too many data for an option".to_owned())),
        };
        match outcome {
            Ok(next) => {
                put(out, option, reply::ACK, &[]);
                Ok(next)
            }
            Err((kind, text)) => {
                if option == option::SET_META_CONTEXT {
                    self.agreed.contexts.clear();
                }
                out.truncate(begin);
                put(out, option, kind, text.as_bytes());
                Ok(Next::Option)
            }
        }
    }

    fn export_name(
        &mut self,
        name: Option<&[u8]>,
        offer: Option<&Offer>,
        out: &mut Vec<u8>,
    ) -> Result<Next, Ended> {
        let offer = offer.filter(|offer| name.is_some_and(|name| is_named(offer, name)));
        let offer = offer.ok_or(Ended::NoExport)?;
        out.extend(offer.size_bytes.to_be_bytes());
        out.extend(self.flags(offer).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        Ok(Next::Requests(self.agreed.clone()))
    }

    fn answer(
        &mut self,
        option: u32,
        mut data: Fields<'_>,
        offer: Option<&Offer>,
        out: &mut Vec<u8>,
    ) -> Result<Next, Refusal> {
        match option {
            option::LIST => {
                data.end()?;
                if let Some(offer) = offer {
                    let name = offer.name.as_bytes();
                    let mut server = (name.len() as u32).to_be_bytes().to_vec();
                    server.extend(name);
                    server.extend(description(offer).as_bytes());
                    put(out, option, reply::SERVER, &server);
                }
                Ok(Next::Option)
            }
            option::STARTTLS => {
                data.end()?;
                let text = "this server offers no TLS: use a socket of the same machine, a tunnel, or a network of its own";
                Err((reply::POLICY, text.to_owned()))
            }
            option::INFO | option::GO => {
                let name = data.string()?;
                let count = data.u16()?;
                let mut asked = Vec::with_capacity(count.into());
                for _ in 0..count {
                    asked.push(data.u16()?);
                }
                data.end()?;
                let offer = known(offer, name)?;
                self.tell(option, offer, &asked, out);
                Ok(match option {
                    option::GO => Next::Requests(self.agreed.clone()),
                    _ => Next::Option,
                })
            }
            option::STRUCTURED_REPLY => {
                data.end()?;
                self.agreed.structured = true;
                Ok(Next::Option)
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(option, data, offer, out)?;
                Ok(Next::Option)
            }
            _ => Err((reply::UNSUPPORTED, "no such option".to_owned())),
        }
    }

    /// What a client is told about the export.
    fn tell(&self, option: u32, offer: &Offer, asked: &[u16], out: &mut Vec<u8>) {
        let mut told = |kind: u16, fields: &[&[u8]]| {
            let payload = [&[&kind.to_be_bytes()[..]], fields].concat().concat();
            put(out, option, reply::INFO, &payload);
        };
        let flags = self.flags(offer).to_be_bytes();
        told(info::EXPORT, &[&offer.size_bytes.to_be_bytes(), &flags]);
        if asked.contains(&info::NAME) {
            told(info::NAME, &[offer.name.as_bytes()]);
        }
        if asked.contains(&info::DESCRIPTION) {
            told(info::DESCRIPTION, &[description(offer).as_bytes()]);
        }
        if asked.contains(&info::BLOCK_SIZE) {
            let sizes = [BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, PAYLOAD_BYTES_MAX];
            told(
                info::BLOCK_SIZE,
                &sizes
                    .each_ref()
                    .map(|it| it.to_be_bytes())
                    .each_ref()
                    .map(|it| &it[..]),
            );
        }
    }

    fn flags(&self, offer: &Offer) -> u16 {
        use export_flag as flag;
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        flags |= match offer.read_only {
            true => flag::READ_ONLY,
            false => flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO,
        };
        if self.agreed.structured {
            flags |= flag::SEND_DF;
        }
        flags
    }

    /// Lists metadata contexts, or chooses some.
    fn contexts(
        &mut self,
        option: u32,
        mut data: Fields<'_>,
        offer: Option<&Offer>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if option == option::SET_META_CONTEXT {
            self.agreed.contexts.clear();
        }
        if !self.agreed.structured {
            return Err(invalid("metadata contexts need structured replies first"));
        }
        let name = data.string()?;
        let count = data.u32()?;
        if count > QUERIES_MAX {
            let text = format!("more than {QUERIES_MAX} queries");
            return Err((reply::TOO_BIG, text));
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            let query = data.string()?;
            let query = std::str::from_utf8(query);
            let query = query.map_err(|_| invalid("a query that is no text"))?;
            if !query.contains(':') {
                return Err(invalid(
                    "a query without the namespace of a metadata context",
                ));
            }
            queries.push(query);
        }
        data.end()?;
        let offer = known(offer, name)?;
        let is_list = option == option::LIST_META_CONTEXT;
        let is_asked = |name: &str| {
            queries
                .iter()
                .any(|query| *query == name || is_list && is_wildcard(query, name))
                || is_list && queries.is_empty()
        };
        let of_snapshots = offer.snapshots.iter();
        let of_snapshots = of_snapshots
            .map(|(name, uuid)| (format!("{CHANGED}{name}"), Context::ChangedSince(*uuid)));
        let all = std::iter::once((ALLOCATION.to_owned(), Context::Allocation)).chain(of_snapshots);
        let max = if is_list {
            CONTEXTS_LISTED_MAX
        } else {
            CONTEXTS_MAX
        };
        let mut chosen = Vec::new();
        for (name, context) in all.filter(|(name, _)| is_asked(name)) {
            if chosen.len() == max {
                let text = format!("more than {max} metadata contexts: name fewer");
                return Err((reply::TOO_BIG, text));
            }
            // In an answer that only lists, the number means nothing.
            let id = if is_list { 0 } else { chosen.len() as u32 };
            let told = [&id.to_be_bytes(), name.as_bytes()].concat();
            put(out, option, reply::META_CONTEXT, &told);
            chosen.push(context);
        }
        if !is_list {
            self.agreed.contexts = chosen;
        }
        Ok(())
    }
}

/// Whether a query means all contexts of a kind, this one among them.
fn is_wildcard(query: &str, name: &str) -> bool {
    ["base:", "qemu:", CHANGED].contains(&query) && name.starts_with(query)
}

fn description(offer: &Offer) -> String {
    format!("volume {} of Onefold", offer.name)
}

fn is_named(offer: &Offer, name: &[u8]) -> bool {
    name.is_empty() || name == offer.name.as_bytes()
}

fn known<'a>(offer: Option<&'a Offer>, name: &[u8]) -> Result<&'a Offer, Refusal> {
    let offer = offer.ok_or_else(|| {
        let text = "the volume is gone, or waits for the rest of an image";
        (reply::UNKNOWN, text.to_owned())
    })?;
    match is_named(offer, name) {
        true => Ok(offer),
        false => {
            let text = format!("the export of this place is '{}'", offer.name);
            Err((reply::UNKNOWN, text))
        }
    }
}

fn put(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    let data = match kind < reply::UNSUPPORTED {
        true => data,
        false => &data[..data.len().min(STRING_BYTES_MAX)],
    };
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    // All answers are far below 4 GiB.
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// What is left of an option's data.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Refusal> {
        let split = self.0.split_at_checked(len);
        let (taken, rest) = split.ok_or_else(|| invalid("an option that is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        Ok(self
            .take(2)?
            .iter()
            .fold(0, |number, byte| number << 8 | u16::from(*byte)))
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        Ok(self
            .take(4)?
            .iter()
            .fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    fn string(&mut self) -> Result<&'a [u8], Refusal> {
        let len = self.u32()? as usize;
        match len > STRING_BYTES_MAX {
            true => Err(invalid("a string that is longer than 4096 bytes")),
            false => self.take(len),
        }
    }

    fn end(self) -> Result<(), Refusal> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(invalid("an option with data that it does not have")),
        }
    }
}

#[cfg(test)]
mod tests;
