//! What a sender offers is looked for in this pool.
//!
//! Guarantee: only what the daemon has found, proven and written is answered to be here.

use std::collections::VecDeque;

use api::client::Client;
use api::images::ImportSession;
use api::known::{FindKnown, SoughtBlock, text_of};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesOrdered;
use streams::{Answer, BLOCK_BYTES, Digest, Offered, Range, bits_of};
use subsystem::errors::Failure;

use super::super::transfer::PIECES;
use super::answers::Answers;
use super::likely::Likely;

/// An offer that was looked for.
pub(super) struct Looked {
    /// Where its blocks belong.
    offsets: Vec<u64>,
    /// Whether each of them is here.
    has: Vec<bool>,
}

/// Looks for what a sender offers.
pub(super) struct Looking<'a> {
    answers: &'a Answers,
    key: Digest,
    likely: Likely,
    /// The pools share a key.
    fingerprints: bool,
    /// Offers that are being looked for, in their order.
    offers: FuturesOrdered<LocalBoxFuture<'a, Result<Looked, Failure>>>,
    /// Blocks that were said to be here, and are written, in order.
    known: VecDeque<u64>,
}

impl<'a> Looking<'a> {
    pub(super) fn new(
        answers: &'a Answers,
        key: Digest,
        likely: Likely,
        fingerprints: bool,
    ) -> Self {
        Self {
            answers,
            key,
            likely,
            fingerprints,
            offers: FuturesOrdered::new(),
            known: VecDeque::new(),
        }
    }

    /// Begins to look for blocks.
    pub(super) async fn look(
        &mut self,
        client: &'a Client,
        name: &'a str,
        session: &'a ImportSession,
        offered: &[Offered],
    ) -> Result<(), Failure> {
        while self.offers.len() >= PIECES {
            let answer = self.offers.next().await;
            self.found(answer).await?;
        }
        let offsets: Vec<u64> = offered.iter().map(|block| block.offset).collect();
        let mut has = vec![false; offsets.len()];
        let mut places = Vec::new();
        let mut blocks = Vec::new();
        for (at, block) in offered.iter().enumerate() {
            let like = self.likely.place_of(&block.hash);
            let fingerprint = block.fingerprint.filter(|_| self.fingerprints);
            if like.is_some() || fingerprint.is_some() {
                places.push(at);
                blocks.push(SoughtBlock {
                    offset: block.offset,
                    hash: block.hash,
                    fingerprint: fingerprint.as_ref().map(text_of),
                    like,
                });
            }
        }
        let request = FindKnown {
            session: session.session,
            key: self.key,
            blocks,
        };
        self.offers.push_back(Box::pin(async move {
            if !places.is_empty() {
                let found = client.write_known(name, &request).await?.known;
                for (at, known) in places.into_iter().zip(found) {
                    has[at] = known;
                }
            }
            Ok(Looked { offsets, has })
        }));
        Ok(())
    }

    /// The oldest offer was looked for.
    pub(super) async fn found(
        &mut self,
        answer: Option<Result<Looked, Failure>>,
    ) -> Result<(), Failure> {
        let Some(Looked { offsets, has }) = answer.transpose()? else {
            return Ok(());
        };
        let known = offsets.into_iter().zip(&has).filter(|(_, has)| **has);
        self.known.extend(known.map(|(offset, _)| offset));
        self.answers.say(Answer::Has(bits_of(&has))).await
    }

    /// Whether all of a range was said to be here. Nothing before it is asked for any more.
    pub(super) fn had(&mut self, range: Range) -> bool {
        let end = range.offset + range.length;
        let mut had_bytes = 0;
        while let Some(offset) = self.known.front().copied().filter(|offset| *offset < end) {
            had_bytes += u64::from(offset >= range.offset) * BLOCK_BYTES;
            self.known.pop_front();
        }
        had_bytes == range.length
    }
}

/// Waits for the oldest offer that is being looked for, for ever if there is none.
pub(super) async fn next_found(
    looking: &mut Option<Looking<'_>>,
) -> Option<Result<Looked, Failure>> {
    match looking {
        Some(looking) if !looking.offers.is_empty() => looking.offers.next().await,
        _ => std::future::pending().await,
    }
}
