//! Blocks of an image that need not come, because the pool has them.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/volumes/NAME/import/known` with [`FindKnown`] | [`Known`] |
//! | `GET /v1/volumes/NAME/key-proof?nonce=HEX` | a [`KeyProof`] |
//! | `POST /v1/domain-keys` with [`TakeKey`] | a [`TakenKey`] |
//! | `POST /v1/pool/known?domain=NAME` with whole blocks as `application/octet-stream` | a [`KnownCount`] |
//!
//! Guarantee: a content is used only if it was read here and has the hash that was asked for. So the request tells who
//! makes it nothing of a content that it does not know; that it can tell a guess to be right is why it takes the role of
//! an administrator.

use axum::body;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use dedup::{ErrorKind, KnownContents, MAX_COMMAND_BYTES};
use hyper::Method;
use meta::{Fingerprint, FingerprintFunction};
use serde::{Deserialize, Serialize};
use streams::Digest;
use subsystem::errors::Failure;
use subsystem::target::known::Sought;
use uuid::Uuid;

use crate::client::Client;
use crate::errors::Answer;
use crate::extract::{Body, Path, Query};
use crate::hosts::SecretText;
use crate::images::{Bytes, OCTETS, READING, WRITING, place_of, whole};
use crate::server::ApiState;
use crate::volumes::{is_plain, volume_path};

/// The longest request body, in bytes: blocks, each with the longest name.
const REQUEST_BYTES_MAX: usize = 512 << 10;

/// Blocks of an image that the pool may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindKnown {
    /// The import's session.
    pub session: Uuid,
    /// The key of the hashes.
    pub key: Digest,
    /// At most [`streams::OFFERED_MAX`].
    pub blocks: Vec<SoughtBlock>,
}

/// A block of 4,096 bytes, and where the pool may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoughtBlock {
    /// Where it belongs in the volume.
    pub offset: u64,
    /// Its BLAKE3 with the key.
    pub hash: Digest,
    /// Its fingerprint in the domain of the volume: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Where the same content may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<LikelyPlace>,
}

/// A block of a volume or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LikelyPlace {
    /// Its name.
    pub volume: String,
    /// The first byte.
    pub offset: u64,
}

/// Which blocks were found, and are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// One for each block of the request.
    pub known: Vec<bool>,
}

/// Proves the key of a volume's domain to a pool that has the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyProof {
    /// The same for the same nonce, key and function. It tells nothing of the key.
    pub proof: Digest,
}

/// The key of another pool, for a domain that no volume is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeKey {
    /// The domain; the one without a name if it is empty.
    #[serde(default)]
    pub domain: String,
    /// The function that it is a key of: `blake3` or `clnh`.
    pub fingerprint: FingerprintFunction,
    /// The key: 64 hexadecimal digits.
    pub key: SecretText,
}

/// A domain that has the key of another pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenKey {
    /// The domain.
    pub domain: String,
}

/// What a domain of the pool has of some blocks of 4,096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownCount {
    /// Blocks that are all zeros, and take no room.
    pub zeros: u64,
    /// Blocks whose content the domain has.
    pub known: u64,
}

/// Whose contents are counted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfDomain {
    /// The pool's own, if it is empty.
    #[serde(default)]
    domain: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nonce {
    nonce: Digest,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    let known = post(write_known).layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX));
    Router::new()
        .route("/v1/volumes/{name}/import/known", known)
        .route("/v1/volumes/{name}/key-proof", get(key_proof))
        .route("/v1/domain-keys", post(take_key))
        .route("/v1/pool/known", post(count_known))
}

async fn write_known(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<FindKnown>,
) -> Answer<Known> {
    let FindKnown {
        session,
        key,
        blocks,
    } = request;
    let sought = |block: SoughtBlock| {
        let fingerprint = block.fingerprint.as_deref().map(fingerprint_of);
        Ok(Sought {
            offset: block.offset,
            hash: block.hash,
            fingerprint: fingerprint.transpose()?,
            like: block.like.map(|place| (place.volume, place.offset)),
        })
    };
    let blocks: Result<Vec<_>, Failure> = blocks.into_iter().map(sought).collect();
    let blocks = blocks?;
    let _place = place_of(&WRITING).await?;
    let (target, buffers) = (state.target.clone(), state.control.buffers().clone());
    let work = move || async move {
        let written = target.write_known(&name, session, key, &blocks, &buffers);
        written.await
    };
    let known = state.control.spawn(work).await??;
    Ok(Json(Known { known }))
}

/// A fingerprint as it is written.
fn fingerprint_of(text: &str) -> Result<Fingerprint, Failure> {
    let is_hex = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
    let number = number
        .ok_or_else(|| Failure::invalid("a fingerprint is written as 32 hexadecimal digits"))?;
    Ok(Fingerprint(number.to_be_bytes()))
}

/// How a fingerprint is written.
#[must_use]
pub fn text_of(fingerprint: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*fingerprint))
}

async fn key_proof(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Query(Nonce { nonce }): Query<Nonce>,
) -> Answer<KeyProof> {
    // Whatever waits for the rest of it: the key is that of its domain.
    let volume = state.engine.volume(&name);
    let volume = volume
        .ok_or_else(|| Failure::new(ErrorKind::NotFound, format!("there is no volume '{name}'")))?;
    let proof = Digest(volume.key_proof(&nonce.0));
    Ok(Json(KeyProof { proof }))
}

async fn take_key(State(state): State<ApiState>, Body(request): Body<TakeKey>) -> Answer<TakenKey> {
    let TakeKey {
        domain,
        fingerprint,
        key,
    } = request;
    let key = Digest::try_from(key.0)
        .map_err(|why| Failure::invalid(format!("the key is none: {why}")))?;
    let (engine, dir, of) = (state.engine.clone(), state.dir.clone(), domain.clone());
    let work = move || async move {
        let mut dir = dir.lock().await;
        let write_down = || Ok(dir.set_domain_key(&of, key.0)?);
        engine
            .take_domain_key(&of, fingerprint, key.0, write_down)
            .await
    };
    state.control.spawn(work).await?.map_err(Failure::from)?;
    Ok(Json(TakenKey { domain }))
}

async fn count_known(
    State(state): State<ApiState>,
    Query(OfDomain { domain }): Query<OfDomain>,
    body: body::Body,
) -> Answer<KnownCount> {
    let _place = place_of(&READING).await?;
    let data = whole(body, MAX_COMMAND_BYTES, "the blocks that are looked for").await?;
    if data.is_empty() {
        return Err(Failure::invalid("there are no blocks to look for").into());
    }
    let (engine, buffers) = (state.engine.clone(), state.control.buffers().clone());
    let work = move || async move {
        let mut buffer = buffers.alloc(data.len()).await;
        buffer.copy_from_slice(&data);
        drop(data);
        engine.count_known(&domain, buffer).await.0
    };
    let KnownContents { zeros, known } = state.control.spawn(work).await??;
    Ok(Json(KnownCount { zeros, known }))
}

impl Client {
    /// Proves the key of the domain of a volume or a snapshot to another pool that has it.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn key_proof(&self, name: &str, nonce: &Digest) -> Result<Digest, Failure> {
        let nonce = String::from(*nonce);
        let path = format!("{}/key-proof?nonce={nonce}", volume_path(name)?);
        let KeyProof { proof } = self.get(&path).await?;
        Ok(proof)
    }

    /// Gives a domain that no volume is of the key of another pool.
    ///
    /// # Errors
    /// There is such a volume, the pool has another function, or no daemon serves it.
    pub async fn take_key(&self, request: &TakeKey) -> Result<TakenKey, Failure> {
        self.send(Method::POST, "/v1/domain-keys", Some(request))
            .await
    }

    /// Looks for blocks of an image in the pool, and writes those that it has.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn write_known(&self, name: &str, request: &FindKnown) -> Result<Known, Failure> {
        let path = format!("{}/import/known", volume_path(name)?);
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Counts what a domain of the pool has of whole blocks, at most [`MAX_COMMAND_BYTES`] of them.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn count_known(&self, domain: &str, blocks: Bytes) -> Result<KnownCount, Failure> {
        if !domain.is_empty() && !is_plain(domain) {
            return Err(Failure::invalid(format!(
                "'{domain}' cannot be the name of a domain: names are made of a-z A-Z 0-9 . _ -"
            )));
        }
        let path = format!("/v1/pool/known?domain={domain}");
        let mut lane = self.lane().await?;
        let answer = lane.ask(Method::POST, &path, OCTETS, blocks).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| lane.broken("sent an answer of another version", &error))
    }
}
