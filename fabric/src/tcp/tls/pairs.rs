//! A host's session and a target's against each other, with everything in between that a network or a peer can do.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme::auth::{Hash, TlsPsk};
use openssl::hash::{MessageDigest, hash};
use openssl::pkey::PKey;
use openssl::sign::Signer;
use proptest::prelude::*;
use zeroize::Zeroizing;

use super::session::{OUTPUT_BYTES_MAX, Opened, RECORD_BYTES, Session};
use super::{TLS_KEY_BYTES_MAX, TlsKeys, TlsSuite, raw};
use crate::error::TlsFailure;

/// Knows one key.
struct One(TlsPsk);

impl TlsKeys for One {
    fn find(&self, identity: &str, _: SocketAddr) -> Option<TlsPsk> {
        (self.0.identity == identity).then(|| self.0.clone())
    }

    fn failed(&self, _: SocketAddr, _: &TlsFailure) {}

    fn holds_off(&self, _: SocketAddr) -> bool {
        false
    }
}

fn psk(hash: Hash) -> TlsPsk {
    TlsPsk {
        identity: format!("NVMe0R{:02} host subsystem", hash.id()),
        hash,
        key: Zeroizing::new(vec![7; hash.len()]),
    }
}

fn target(psk: TlsPsk) -> Session {
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    Session::accept(Arc::new(One(psk)), peer, TLS_KEY_BYTES_MAX).expect("OpenSSL")
}

/// What a session has to say.
fn said(session: &mut Session) -> Vec<u8> {
    let bytes = session.output().to_vec();
    session.sent(bytes.len());
    bytes
}

/// Gives bytes to a session, in pieces of that size; tells what comes out, and how it ended if it did.
fn heard(session: &mut Session, bytes: &[u8], piece: usize) -> Result<Vec<u8>, TlsFailure> {
    let mut data = Vec::new();
    let mut into = vec![0; RECORD_BYTES];
    for piece in bytes.chunks(piece) {
        session.give(piece.to_vec(), piece.len());
        loop {
            match session.open(&mut into)? {
                Opened::Data(bytes) => data.extend_from_slice(&into[..bytes]),
                Opened::Secured(_) => {}
                Opened::Nothing | Opened::End => break,
            }
        }
        session.take_back();
    }
    Ok(data)
}

/// A host and a target whose handshake is done.
fn pair(hash: Hash) -> (Session, Session) {
    pair_with(hash, TLS_KEY_BYTES_MAX, TLS_KEY_BYTES_MAX)
}

/// The same with keys that protect so many bytes, as the host sees it and as the target does.
fn pair_with(hash: Hash, host_max: u64, target_max: u64) -> (Session, Session) {
    let mut host = Session::connect(psk(hash), host_max).expect("OpenSSL");
    let keys = Arc::new(One(psk(hash)));
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut target = Session::accept(keys, peer, target_max).expect("OpenSSL");
    while host.is_handshaking() || target.is_handshaking() {
        let bytes = said(&mut host);
        assert_eq!(heard(&mut target, &bytes, 1000), Ok(vec![]));
        let bytes = said(&mut target);
        assert_eq!(heard(&mut host, &bytes, 1000), Ok(vec![]));
    }
    (host, target)
}

fn seal(session: &mut Session, data: &[u8]) -> Vec<u8> {
    assert_eq!(session.seal(data), Ok(data.len()));
    said(session)
}

#[test]
fn nothing_is_said_behind_the_handshake_that_a_kernel_would_not_understand() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let (mut host, mut target) = pair(hash);
        // No session ticket waits, neither now nor with the first data.
        assert!(target.output().is_empty() && host.output().is_empty());
        let record = seal(&mut target, &[1; 100]);
        // Type application_data; a header, the data, its type, and a tag.
        assert_eq!((record[0], record.len()), (23, 5 + 100 + 1 + 16));
        assert_eq!(heard(&mut host, &record, 7), Ok(vec![1; 100]));
    }
}

#[test]
fn a_peer_may_change_its_keys_at_any_time() {
    let (mut host, mut target) = pair(Hash::Sha384);
    for round in 0..3_u8 {
        assert!(raw::update_key(&mut host.stream));
        let record = seal(&mut host, &[round; 5000]);
        assert_eq!(heard(&mut target, &record, 999), Ok(vec![round; 5000]));
        // The target changes its own with what it sends next.
        let record = seal(&mut target, &[round; 50]);
        assert!(record.len() > 5 + 50 + 1 + 16, "a key update comes first");
        assert_eq!(heard(&mut host, &record, 999), Ok(vec![round; 50]));
    }
}

/// Sends a kilobyte, as far as the keys allow it; what the receiver has to say goes back.
fn send(from: &mut Session, to: &mut Session) {
    let record = seal(from, &[7; 1000]);
    assert_eq!(heard(to, &record, 4096), Ok(vec![7; 1000]));
    let answer = said(to);
    assert_eq!(heard(from, &answer, 4096), Ok(vec![]));
}

#[test]
fn a_host_changes_the_keys_of_both_sides_before_they_have_protected_too_much() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        // What both send, what the host alone sends, and what the target alone sends.
        for (host_sends, target_sends) in [(true, true), (true, false), (false, true)] {
            let (mut host, mut target) = pair_with(hash, 10_000, 10_000);
            for _ in 0..100 {
                if host_sends {
                    send(&mut host, &mut target);
                }
                if target_sends {
                    send(&mut target, &mut host);
                }
                assert!(!host.is_used_up() && !target.is_used_up());
            }
        }
    }
}

#[test]
fn keys_that_nobody_changes_are_used_up_before_aes_gcm_s_limit() {
    // Such as a Linux host's, whatever it sends and receives.
    let (mut host, mut target) = pair_with(Hash::Sha256, TLS_KEY_BYTES_MAX, 10_000);
    let mut sent = 0;
    while !target.is_used_up() {
        send(&mut host, &mut target);
        sent += 1;
    }
    assert_eq!(sent, 10, "with what a record has beside its data");
    let (mut host, mut target) = pair_with(Hash::Sha384, TLS_KEY_BYTES_MAX, 10_000);
    let mut sent = 0;
    while !target.is_used_up() {
        send(&mut target, &mut host);
        sent += 1;
    }
    assert_eq!(sent, 10);
}

#[test]
fn a_target_changes_keys_with_a_host_that_knows_of_that() {
    let (mut host, mut target) = pair_with(Hash::Sha256, TLS_KEY_BYTES_MAX, 10_000);
    assert!(raw::update_key(&mut host.stream));
    for _ in 0..100 {
        send(&mut host, &mut target);
        send(&mut target, &mut host);
        assert!(!target.is_used_up());
    }
}

#[test]
fn a_peer_that_asks_for_new_keys_and_reads_no_answer_is_given_up_before_memory_is() {
    let (mut host, mut target) = pair(Hash::Sha256);
    let ended = (0..OUTPUT_BYTES_MAX).find_map(|_| {
        assert!(raw::update_key(&mut host.stream));
        host.stream.do_handshake().expect("it is sent");
        let heard = heard(&mut target, &said(&mut host), 4096);
        assert!(target.output().len() <= OUTPUT_BYTES_MAX);
        heard.err()
    });
    assert!(matches!(ended, Some(TlsFailure::Record(_))), "{ended:?}");
}

#[test]
fn the_end_is_said_once_and_heard() {
    let (mut host, mut target) = pair(Hash::Sha256);
    assert!(host.say_end() && !host.say_end());
    let alert = said(&mut host);
    let mut into = [0; 16];
    target.give(alert.clone(), alert.len());
    assert!(matches!(target.open(&mut into), Ok(Opened::End)));
    // After its own last word a session seals nothing.
    assert_eq!(host.seal(b"more"), Ok(0));
}

#[test]
fn a_handshake_that_does_not_end_is_cut_off() {
    let mut hello = vec![22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    hello.resize(5 + 0x4000, 0);
    let mut many = hello.clone();
    for _ in 0..3 {
        many.extend_from_slice(&[22, 3, 1, 0x40, 0]);
        many.resize(many.len() + 0x4000, 0);
    }
    let mut target = target(psk(Hash::Sha256));
    assert_eq!(heard(&mut target, &many, 1 << 16), Err(TlsFailure::TooLong));
}

#[test]
fn who_names_no_key_is_told_so() {
    use openssl::ssl::{SslConnector, SslMethod};
    // A client of the usual kind, which wants a certificate.
    let connector = SslConnector::builder(SslMethod::tls())
        .expect("OpenSSL")
        .build();
    let stream = connector.connect("target", Silent::default());
    let Err(openssl::ssl::HandshakeError::WouldBlock(waiting)) = stream else {
        panic!("it waits");
    };
    let mut target = target(psk(Hash::Sha256));
    let hello = &waiting.get_ref().0;
    assert_eq!(heard(&mut target, hello, 100), Err(TlsFailure::NoIdentity));
}

/// Takes what is said and never answers.
#[derive(Debug, Default)]
struct Silent(Vec<u8>);

impl std::io::Read for Silent {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::WouldBlock.into())
    }
}

impl std::io::Write for Silent {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn hmac(key: &[u8], data: &[u8]) -> Vec<u8> {
    let key = PKey::hmac(key).expect("OpenSSL");
    let mut signer = Signer::new(MessageDigest::sha256(), &key).expect("OpenSSL");
    signer.sign_oneshot_to_vec(data).expect("OpenSSL")
}

/// HKDF-Expand-Label (RFC 8446, section 7.1) to 32 bytes.
fn expand_label(secret: &[u8], label: &str, context: &[u8]) -> Vec<u8> {
    let mut info = vec![0, 32, 6 + label.len() as u8];
    info.extend_from_slice(b"tls13 ");
    info.extend_from_slice(label.as_bytes());
    info.push(context.len() as u8);
    info.extend_from_slice(context);
    info.push(1);
    hmac(secret, &info)
}

fn extension(number: u16, body: &[u8], hello: &mut Vec<u8>) {
    hello.extend_from_slice(&number.to_be_bytes());
    hello.extend_from_slice(&(body.len() as u16).to_be_bytes());
    hello.extend_from_slice(body);
}

/// A ClientHello that offers AES-256 first, and two keys of which the second is `psk`, proven.
fn hello_with_two_identities(psk: &TlsPsk) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[9; 32]);
    // No session; TLS_AES_256_GCM_SHA384 and TLS_AES_128_GCM_SHA256; no compression.
    body.extend_from_slice(&[0, 0, 4, 0x13, 2, 0x13, 1, 1, 0]);
    let mut extensions = Vec::new();
    // TLS 1.3; X25519, with a share; psk_dhe_ke.
    extension(43, &[2, 3, 4], &mut extensions);
    extension(10, &[0, 2, 0, 29], &mut extensions);
    let mut share = vec![0, 36, 0, 29, 0, 32];
    share.extend_from_slice(&[9; 32]);
    extension(51, &share, &mut extensions);
    extension(45, &[1, 1], &mut extensions);
    let mut identities = Vec::new();
    for identity in ["NVMe1R02 of another subsystem", &psk.identity] {
        identities.extend_from_slice(&(identity.len() as u16).to_be_bytes());
        identities.extend_from_slice(identity.as_bytes());
        identities.extend_from_slice(&[0; 4]);
    }
    let mut offer = (identities.len() as u16).to_be_bytes().to_vec();
    offer.extend_from_slice(&identities);
    let binders_at = offer.len();
    // One of 48 bytes and one of 32.
    offer.extend_from_slice(&[0, 49 + 33, 48]);
    offer.extend_from_slice(&[0; 48]);
    offer.push(32);
    offer.extend_from_slice(&[0; 32]);
    let binders = offer.len() - binders_at;
    extension(41, &offer, &mut extensions);
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(&extensions);
    let mut message = vec![1, 0];
    message.extend_from_slice(&(body.len() as u16).to_be_bytes());
    message.extend_from_slice(&body);
    // The binder covers all before the binders (RFC 8446, section 4.2.11.2).
    let sha256 = |bytes: &[u8]| hash(MessageDigest::sha256(), bytes).expect("OpenSSL");
    let early = hmac(&[0; 32], &psk.key);
    let binder_key = expand_label(&early, "ext binder", &sha256(&[]));
    let finished = expand_label(&binder_key, "finished", &[]);
    let transcript = sha256(&message[..message.len() - binders]);
    let binder = hmac(&finished, &transcript);
    let at = message.len() - 32;
    message[at..].copy_from_slice(&binder);
    let mut record = vec![22, 3, 1];
    record.extend_from_slice(&(message.len() as u16).to_be_bytes());
    record.extend_from_slice(&message);
    record
}

#[test]
fn of_several_keys_the_one_that_is_known_is_taken_with_its_suite() {
    let psk = psk(Hash::Sha256);
    let mut target = target(psk.clone());
    let hello = hello_with_two_identities(&psk);
    assert_eq!(heard(&mut target, &hello, hello.len()), Ok(vec![]));
    let answer = said(&mut target);
    // A ServerHello: its suite stands behind versions, random and an empty session.
    assert_eq!((answer[0], answer[5]), (22, 2));
    assert_eq!(answer[44..46], TlsSuite::Aes128Gcm.number());
    let hello_end = 5 + usize::from(u16::from_be_bytes([answer[3], answer[4]]));
    // pre_shared_key: identity 1.
    let selected = [0, 41, 0, 2, 0, 1];
    assert!(answer[..hello_end].windows(6).any(|part| part == selected));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn however_records_are_cut_the_same_bytes_come_out(
        parts in prop::collection::vec(prop_oneof![1..50_usize, 4000..40_000_usize], 1..6),
        piece in prop_oneof![1..40_usize, 1000..70_000_usize], sha384: bool,
    ) {
        let (mut host, mut target) = pair(if sha384 { Hash::Sha384 } else { Hash::Sha256 });
        let (mut records, mut expected) = (Vec::new(), Vec::new());
        for (n, bytes) in parts.into_iter().enumerate() {
            let data: Vec<u8> = (0..bytes).map(|at| (at * 7 + n) as u8).collect();
            records.extend(seal(&mut host, &data));
            expected.extend(data);
        }
        prop_assert_eq!(heard(&mut target, &records, piece), Ok(expected));
    }

    #[test]
    fn a_flipped_bit_ends_the_session_and_gives_out_nothing_of_its_record(
        bytes in 1..20_000_usize, at: prop::sample::Index, bit in 0..8_u8, piece in 1..20_000_usize,
    ) {
        let (mut host, mut target) = pair(Hash::Sha256);
        let before = seal(&mut host, b"before");
        let mut records = seal(&mut host, &vec![3; bytes]);
        let at = at.index(records.len());
        records[at] ^= 1 << bit;
        prop_assert_eq!(heard(&mut target, &before, piece), Ok(b"before".to_vec()));
        // The records before it are whole.
        let whole = at / (RECORD_BYTES + 22) * RECORD_BYTES;
        let mut into = vec![0; RECORD_BYTES];
        let mut out = 0;
        let mut failed = false;
        // Behind it, so that a record that says it is longer gets its bytes.
        records.resize(records.len() + RECORD_BYTES + 300, 0);
        for piece in records.chunks(piece) {
            target.give(piece.to_vec(), piece.len());
            loop {
                match target.open(&mut into) {
                    Ok(Opened::Data(bytes)) => out += bytes,
                    Ok(Opened::Nothing | Opened::Secured(_)) => break,
                    // After the end there is nothing more.
                    Ok(Opened::End) => {
                        prop_assert!(failed);
                        break;
                    }
                    Err(failure) => {
                        let of_a_record = matches!(failure, TlsFailure::Record(_));
                        prop_assert!(of_a_record && !failed, "{failure}");
                        failed = true;
                    }
                }
            }
            target.take_back();
        }
        prop_assert_eq!((failed, out), (true, whole));
        prop_assert_eq!(target.seal(b"more"), Ok(0));
        prop_assert!(target.output().len() < 100, "an alert at most");
    }

    #[test]
    fn any_bytes_in_place_of_a_handshake_end_it_or_wait_for_more(
        kind in prop_oneof![Just(22_u8), any::<u8>()], length: Option<u16>,
        body in prop::collection::vec(any::<u8>(), 0..3000), of_a_hello: Option<prop::sample::Index>,
        piece in 1..3000_usize,
    ) {
        let mut bytes = match of_a_hello {
            // A right one with something else in it.
            Some(at) => {
                let mut host = Session::connect(psk(Hash::Sha256), TLS_KEY_BYTES_MAX).expect("OpenSSL");
                let mut hello = said(&mut host);
                let at = at.index(hello.len());
                let end = hello.len().min(at + body.len());
                hello[at..end].copy_from_slice(&body[..end - at]);
                hello
            }
            None => {
                let mut record = vec![kind, 3, 1];
                record.extend_from_slice(&length.unwrap_or(body.len() as u16).to_be_bytes());
                record.extend_from_slice(&body);
                record
            }
        };
        bytes.extend_from_slice(&[0; 20]);
        let mut target = target(psk(Hash::Sha384));
        let heard = heard(&mut target, &bytes, piece);
        prop_assert!(heard.is_err() || target.is_handshaking());
        prop_assert!(target.output().len() < 1000, "{}", target.output().len());
    }
}
