//! What a receiver answers, beside the stream and against its direction.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

use crate::frame::{Exchange, HEADER_BYTES, OFFERED_MAX, TAG_BYTES, Tag, header, tag_of};

/// What answers begin with.
const MAGIC: &[u8; 16] = b"onefold answers\0";

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: usize = OFFERED_MAX / 8;

/// Bytes of what is no answer that an error shows.
const SHOWN_BYTES: usize = 64;

const WORKING: u8 = 1;
const READY: u8 = 2;
const HAS: u8 = 3;
const WHOLE: u8 = 4;

const LOOKS: u64 = 1;
const FINGERPRINTS: u64 = 2;

/// What a receiver says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is still there.
    Working,
    /// It takes the stream; the first answer but [`Answer::Working`].
    Ready(Ready),
    /// Which blocks of the oldest open offer it has: a bit for each, the lowest bit of the first byte first.
    Has(Vec<u8>),
    /// All of the stream is there, and hosts see it; the last one.
    Whole,
}

/// How a receiver takes a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// It has all before this byte.
    pub start_bytes: u64,
    /// It looks for what is offered.
    pub looks: bool,
    /// It looks by fingerprints, too: the pools share a key.
    pub fingerprints: bool,
}

/// Why answers are refused.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// They end too early.
    #[error("the receiver ended before it had all: it says why")]
    Cut,
    /// They are none. The beginning of what came instead.
    #[error(
        "what came instead of the receiver's answers begins with \"{0}\": only `onefold receive` may write there"
    )]
    NoAnswers(String),
    /// They were changed on the way, or belong to another stream.
    #[error("answer {0} was changed on the way, or is one to another stream")]
    Damaged(u64),
    /// An answer breaks a rule.
    #[error("answer {0} is wrong: {1}")]
    Wrong(u64, &'static str),
    /// They cannot be read.
    #[error("the answers cannot be read: {0}")]
    Io(#[from] io::Error),
}

fn first_tag(exchange: &Exchange) -> Tag {
    tag_of(MAGIC, &exchange.key.0, &[])
}

/// Writes answers.
#[derive(Debug)]
pub struct AnswerEncoder<W> {
    output: W,
    tag: Tag,
}

impl<W: Write> AnswerEncoder<W> {
    /// Begins to answer the stream whose head says this.
    ///
    /// # Errors
    /// The output fails.
    pub fn new(mut output: W, exchange: &Exchange) -> io::Result<Self> {
        output.write_all(MAGIC)?;
        Ok(Self {
            output,
            tag: first_tag(exchange),
        })
    }

    /// Answers, and does not wait for more.
    ///
    /// # Errors
    /// The output fails.
    pub fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        let (kind, payload) = match answer {
            Answer::Working => (WORKING, Vec::new()),
            Answer::Ready(ready) => {
                let looks = if ready.looks { LOOKS } else { 0 };
                let flags = looks | if ready.fingerprints { FINGERPRINTS } else { 0 };
                (
                    READY,
                    [ready.start_bytes, flags].map(u64::to_le_bytes).concat(),
                )
            }
            Answer::Has(bits) => (HAS, bits.clone()),
            Answer::Whole => (WHOLE, Vec::new()),
        };
        let header = header(kind, payload.len());
        self.tag = tag_of(&self.tag, &header, &payload);
        let whole = [&header[..], &payload, &self.tag].concat();
        self.output.write_all(&whole)?;
        self.output.flush()
    }

    /// Where the answers go.
    pub fn into_output(self) -> W {
        self.output
    }
}

/// Reads answers, and refuses what breaks the format's rules. Whether they fit what was asked says [`Asked`].
#[derive(Debug)]
pub struct AnswerDecoder<R> {
    input: R,
    tag: Tag,
    answers: u64,
    is_ready: bool,
}

impl<R: Read> AnswerDecoder<R> {
    /// Begins to read answers to the stream whose head says this.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub fn new(mut input: R, exchange: &Exchange) -> Result<Self, AnswerError> {
        let mut magic = [0; MAGIC.len()];
        let mut len = 0;
        while len < magic.len() && magic[..len] == MAGIC[..len] {
            match input.read(&mut magic[len..]) {
                Ok(0) if len == 0 => return Err(AnswerError::Cut),
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        if magic != *MAGIC {
            // The rest tells people more.
            let mut shown = magic[..len].to_vec();
            let rest = (SHOWN_BYTES - len) as u64;
            input.by_ref().take(rest).read_to_end(&mut shown)?;
            let shown = String::from_utf8_lossy(&shown).escape_debug().to_string();
            return Err(AnswerError::NoAnswers(shown));
        }
        Ok(Self {
            input,
            tag: first_tag(exchange),
            answers: 0,
            is_ready: false,
        })
    }

    /// The next answer.
    ///
    /// # Errors
    /// The answers are refused from here on.
    pub fn next_answer(&mut self) -> Result<Answer, AnswerError> {
        let wrong = |what| AnswerError::Wrong(self.answers, what);
        let cut = |error: io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => AnswerError::Cut,
            _ => error.into(),
        };
        let mut header = [0; HEADER_BYTES];
        self.input.read_exact(&mut header).map_err(cut)?;
        let [kind, zeros @ .., a, b, c, d] = header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let fits = match kind {
            WORKING | WHOLE => length == 0,
            READY => length == 16,
            HAS => (1..=ANSWER_BYTES_MAX).contains(&length),
            _ => return Err(wrong("there is no such kind of answer")),
        };
        if !fits || zeros != [0; 3] {
            return Err(wrong("its length does not fit its kind"));
        }
        let mut payload = vec![0; length];
        self.input.read_exact(&mut payload).map_err(cut)?;
        let mut tag = [0; TAG_BYTES];
        self.input.read_exact(&mut tag).map_err(cut)?;
        if tag != tag_of(&self.tag, &header, &payload) {
            return Err(AnswerError::Damaged(self.answers));
        }
        let answer = match kind {
            WORKING => Answer::Working,
            WHOLE => Answer::Whole,
            HAS => Answer::Has(payload),
            _ => {
                let (words, _) = payload.as_chunks::<8>();
                let [start, flags] =
                    [0, 1].map(|at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)));
                if flags & !(LOOKS | FINGERPRINTS) != 0 {
                    return Err(wrong("it says what this program does not know"));
                }
                Answer::Ready(Ready {
                    start_bytes: start,
                    looks: flags & LOOKS != 0,
                    fingerprints: flags & FINGERPRINTS != 0,
                })
            }
        };
        let is_in_turn = match answer {
            Answer::Working => true,
            Answer::Ready(_) => !self.is_ready,
            Answer::Has(_) | Answer::Whole => self.is_ready,
        };
        if !is_in_turn {
            return Err(wrong("it does not come in its turn"));
        }
        self.is_ready |= matches!(answer, Answer::Ready(_));
        self.tag = tag;
        self.answers += 1;
        Ok(answer)
    }
}

/// Offers that are not answered yet.
#[derive(Debug, Default)]
pub struct Asked(VecDeque<usize>);

impl Asked {
    /// So many blocks are offered.
    pub fn offered(&mut self, blocks: usize) {
        self.0.push_back(blocks);
    }

    /// What the receiver says of the blocks of the oldest offer: whether it has each of them.
    ///
    /// # Errors
    /// It says it of blocks that were not offered, or not of all.
    pub fn answered(&mut self, bits: &[u8]) -> Result<Vec<bool>, &'static str> {
        let Some(blocks) = self.0.pop_front() else {
            return Err("it answers what nobody asked");
        };
        let bit = |at: usize| {
            bits.get(at / 8)
                .is_some_and(|byte| byte >> (at % 8) & 1 == 1)
        };
        let ends_there = (blocks..8 * bits.len()).all(|at| !bit(at));
        match bits.len() == blocks.div_ceil(8) && ends_there {
            true => Ok((0..blocks).map(bit).collect()),
            false => Err("it is not about as many blocks as were offered"),
        }
    }
}

/// The bits that say which blocks of an offer a receiver has.
#[must_use]
pub fn bits_of(has: &[bool]) -> Vec<u8> {
    let byte = |eight: &[bool]| {
        let bits = eight.iter().enumerate();
        bits.fold(0, |byte, (at, has)| byte | u8::from(*has) << at)
    };
    has.chunks(8).map(byte).collect()
}
