//! NBD: what a client sends in both phases of a connection.

use ::nbd::handshake::{
    Handshake, Next, OPTION_BYTES_MAX, OPTION_HEADER_BYTES, Offer, parse_option,
};
use ::nbd::wire::{
    BLOCK_BYTES_MIN, Command, OPTION_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX, REQUEST_BYTES,
    REQUEST_MAGIC, Request, error_chunk, simple_reply,
};
use uuid::Uuid;

use crate::input::Input;

/// Bytes of all answers to one option: three snapshots' names are in them at most.
const ANSWERS_BYTES_MAX: usize = 16 << 10;

/// One byte says which phase it is, and how it was begun; the rest is the stream. Magic numbers are made right, so that what
/// lies behind them is reached.
pub(crate) fn stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let how = input.u8();
    match how & 1 {
        0 => options(how >> 1, input.rest()),
        _ => requests(how & 2 != 0, input.rest()),
    }
}

fn options(flags: u8, mut rest: &[u8]) {
    let Ok(mut handshake) = Handshake::begin([0, 0, 0, flags & 7]) else {
        assert!(flags & 4 != 0, "flags that exist");
        return;
    };
    let offer = Offer {
        name: "disk".to_owned(),
        size_bytes: 1 << 30,
        read_only: flags & 8 != 0,
        snapshots: ["a", "b", "some longer name"]
            .map(|name| (name.to_owned(), Uuid::from_u128(name.len() as u128)))
            .to_vec(),
    };
    let offer = (flags & 16 == 0).then_some(offer);
    let mut structured = false;
    while let Some((header, behind)) = rest.split_first_chunk::<OPTION_HEADER_BYTES>() {
        let mut header = *header;
        header[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        let Ok((option, len)) = parse_option(&header) else {
            return;
        };
        let is_long = len > OPTION_BYTES_MAX;
        let (data, next) = behind.split_at((len as usize).min(behind.len()));
        rest = next;
        let mut out = Vec::new();
        let data = (!is_long).then_some(data);
        let next = handshake.option(option, data, offer.as_ref(), &mut out);
        assert!(out.len() <= ANSWERS_BYTES_MAX);
        match next {
            Err(_) => return assert!(out.is_empty(), "an end without an answer"),
            Ok(Next::Requests(agreed)) => {
                assert!(offer.is_some(), "there is an export");
                assert_eq!(agreed.structured, structured);
                assert!(structured || agreed.contexts.is_empty());
                return;
            }
            Ok(next) => {
                let is_granted = answers(option, &out) == 1;
                structured |= option == 8 && is_granted;
                if next == Next::Goodbye {
                    return;
                }
            }
        }
    }
}

/// The kind of the last answer; all of them are whole, and to that option.
fn answers(option: u32, mut bytes: &[u8]) -> u32 {
    let mut last = 0;
    while !bytes.is_empty() {
        assert!(
            !matches!(last, 1 | 0x8000_0000..),
            "nothing follows the last answer"
        );
        let (head, rest) = bytes.split_at(20);
        let number = |at: usize| {
            head[at..at + 4]
                .iter()
                .fold(0, |all, it| all << 8 | u32::from(*it))
        };
        assert_eq!(head[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        assert_eq!(number(8), option);
        last = number(12);
        bytes = &rest[number(16) as usize..];
    }
    assert!(matches!(last, 1 | 0x8000_0000..), "there is a last answer");
    last
}

fn requests(structured: bool, mut rest: &[u8]) {
    while let Some((bytes, behind)) = rest.split_first_chunk::<REQUEST_BYTES>() {
        let mut bytes = *bytes;
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        let Ok(request) = Request::parse(&bytes) else {
            return;
        };
        assert_eq!(request.encode(), bytes);
        assert!(request.payload() <= PAYLOAD_BYTES_MAX);
        match request.check(structured) {
            Ok(()) => {
                let end = request.offset.checked_add(request.len.into());
                assert!(end.is_some_and(|end| end.is_multiple_of(BLOCK_BYTES_MIN.into())));
                assert!(!matches!(request.command, Command::Unknown(_)));
            }
            Err(refused) => {
                let chunk = error_chunk(request.cookie, &refused);
                assert_eq!(chunk.len(), 26 + refused.text.len());
                assert_eq!(simple_reply(request.cookie, Some(refused.errno)).len(), 16);
            }
        }
        let payload = (request.payload() as usize).min(behind.len());
        rest = &behind[payload..];
    }
}
