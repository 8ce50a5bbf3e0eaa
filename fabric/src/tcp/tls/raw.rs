//! Pre-shared keys of TLS 1.3 in OpenSSL: the functions that the openssl crate lacks. Its own callbacks for keys
//! are those of TLS 1.2, with which OpenSSL serves suites with SHA-256 alone.
//!
//! Guarantees: a callback uses the pointers that OpenSSL gives it only while it runs; what it gives to OpenSSL
//! is OpenSSL's, but for the identity of a host, which lives as long as the connection.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uchar, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use nvme::auth::TlsPsk;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContextBuilder, SslStream};
use openssl_sys::{
    EVP_MD, SSL, SSL_AD_HANDSHAKE_FAILURE, SSL_CIPHER, SSL_CLIENT_HELLO_ERROR,
    SSL_CLIENT_HELLO_SUCCESS, SSL_CTX, SSL_CTX_set_client_hello_cb, SSL_SESSION, SSL_SESSION_free,
    SSL_client_hello_get0_ext, SSL_get_ex_data, SSL_set_ciphersuites, TLS1_3_VERSION,
};

use super::TlsSuite;
use super::exchange::Exchange;

/// The extension pre_shared_key (RFC 8446, section 4.2).
const PRE_SHARED_KEY: c_uint = 41;

/// The type of records with handshake messages (RFC 8446, section 5.1), and of the message KeyUpdate (section 4).
const HANDSHAKE: c_int = 22;
const KEY_UPDATE: u8 = 24;

type UseSession = unsafe extern "C" fn(
    *mut SSL,
    *const EVP_MD,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut SSL_SESSION,
) -> c_int;
type FindSession =
    unsafe extern "C" fn(*mut SSL, *const c_uchar, usize, *mut *mut SSL_SESSION) -> c_int;

type NoteMessage =
    unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, usize, *mut SSL, *mut c_void);

// As openssl/ssl.h of OpenSSL 1.1.1 and later declares them.
unsafe extern "C" {
    fn SSL_CTX_set_psk_use_session_callback(context: *mut SSL_CTX, callback: Option<UseSession>);
    fn SSL_CTX_set_psk_find_session_callback(context: *mut SSL_CTX, callback: Option<FindSession>);
    fn SSL_CIPHER_find(ssl: *mut SSL, number: *const c_uchar) -> *const SSL_CIPHER;
    fn SSL_SESSION_new() -> *mut SSL_SESSION;
    fn SSL_SESSION_set1_master_key(
        session: *mut SSL_SESSION,
        key: *const c_uchar,
        bytes: usize,
    ) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut SSL_SESSION, cipher: *const SSL_CIPHER) -> c_int;
    fn SSL_key_update(ssl: *mut SSL, kind: c_int) -> c_int;
    fn SSL_CTX_set_msg_callback(context: *mut SSL_CTX, callback: Option<NoteMessage>);
    fn SSL_SESSION_set_protocol_version(session: *mut SSL_SESSION, version: c_int) -> c_int;
}

/// Changes the key of what this end sends, and asks the peer for the same (`SSL_KEY_UPDATE_REQUESTED`). The message
/// leaves before the data that are sealed next. False before the handshake is done, or when the connection failed.
pub(super) fn update_key(stream: &mut SslStream<super::session::Wire>) -> bool {
    const REQUESTED: c_int = 1;
    let ssl: *const openssl::ssl::SslRef = stream.ssl();
    // SAFETY: a reference of the openssl crate to a connection is OpenSSL's pointer to it, and it is alive.
    let done = unsafe { SSL_key_update(ssl.cast_mut().cast(), REQUESTED) };
    if done != 1 {
        // What is wrong shows at the next record; here it must not be taken for another connection's.
        drop(ErrorStack::get());
    }
    done == 1
}

/// Where a connection keeps its [`Exchange`].
pub(super) fn place() -> Result<Index<Ssl, Exchange>, ErrorStack> {
    static PLACE: OnceLock<Result<Index<Ssl, Exchange>, ErrorStack>> = OnceLock::new();
    PLACE.get_or_init(Ssl::new_ex_index).clone()
}

/// Connections of this context offer the key of their [`Exchange`].
pub(super) fn offer_keys(context: &mut SslContextBuilder) {
    // SAFETY: the context is alive, and the callback has the type that OpenSSL declares.
    unsafe { SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(use_session)) }
}

/// Connections of this context find the key with their [`Exchange`].
pub(super) fn find_keys(context: &mut SslContextBuilder) {
    // SAFETY: as above; the first callback uses no argument of its own.
    unsafe {
        SSL_CTX_set_client_hello_cb(context.as_ptr(), Some(client_hello), ptr::null_mut());
        SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find_session));
    }
}

/// Connections of this context tell their [`Exchange`] when a key changes.
pub(super) fn follow_keys(context: &mut SslContextBuilder) {
    // SAFETY: as above.
    unsafe { SSL_CTX_set_msg_callback(context.as_ptr(), Some(note_message)) }
}

/// OpenSSL calls this for every message, and for the header of every record, of either side.
unsafe extern "C" fn note_message(
    is_own: c_int,
    _version: c_int,
    kind: c_int,
    message: *const c_void,
    bytes: usize,
    ssl: *mut SSL,
    _: *mut c_void,
) {
    if kind != HANDSHAKE {
        return;
    }
    // SAFETY: the connection is alive, and the message has so many bytes as long as the callback runs.
    let (message, exchange) = unsafe { (slice_of(message.cast(), bytes), exchange(ssl)) };
    if let (Some(&KEY_UPDATE), Some(exchange)) = (message.first(), exchange) {
        exchange.key_changed(is_own != 0);
    }
}

/// The exchange of a connection.
///
/// # Safety
/// The connection is alive for `'a`, and nobody sets its exchange during that.
unsafe fn exchange<'a>(ssl: *mut SSL) -> Option<&'a Exchange> {
    let place = place().ok()?;
    // SAFETY: the connection is alive. What lies there was put there as an `Exchange` by the openssl crate, when
    // the connection was made, and is freed with it.
    unsafe {
        SSL_get_ex_data(ssl, place.as_raw())
            .cast::<Exchange>()
            .as_ref()
    }
}

/// A host may offer suites in any order, and OpenSSL chooses one before it looks at keys: so the key is found
/// here, before that, and its suite is the only one that is left.
unsafe extern "C" fn client_hello(ssl: *mut SSL, alert: *mut c_int, _: *mut c_void) -> c_int {
    let choose = || -> Option<TlsSuite> {
        let (mut offer, mut bytes) = (ptr::null(), 0);
        // SAFETY: OpenSSL calls this for a connection that is alive, with its ClientHello there; the extension
        // lies in that as long as the callback runs.
        let (exchange, offer) = unsafe {
            if SSL_client_hello_get0_ext(ssl, PRE_SHARED_KEY, &mut offer, &mut bytes) != 1 {
                return None;
            }
            (exchange(ssl)?, slice_of(offer, bytes))
        };
        exchange.choose(offer)
    };
    // A panic must not unwind into OpenSSL.
    let chosen = catch_unwind(AssertUnwindSafe(choose)).ok().flatten();
    let name = chosen.map(|suite| match suite {
        TlsSuite::Aes128Gcm => c"TLS_AES_128_GCM_SHA256",
        TlsSuite::Aes256Gcm => c"TLS_AES_256_GCM_SHA384",
    });
    if let Some(name) = name {
        // SAFETY: the connection is alive, and the name ends with a zero.
        if unsafe { SSL_set_ciphersuites(ssl, name.as_ptr()) } == 1 {
            return SSL_CLIENT_HELLO_SUCCESS;
        }
    }
    // SAFETY: OpenSSL gives a place for the alert.
    unsafe { *alert = SSL_AD_HANDSHAKE_FAILURE };
    SSL_CLIENT_HELLO_ERROR
}

unsafe extern "C" fn find_session(
    ssl: *mut SSL,
    identity: *const c_uchar,
    bytes: usize,
    found: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: the connection is alive, the identity has so many bytes as long as the callback runs, and `found`
    // is a place for a session, which OpenSSL takes over.
    unsafe {
        let identity = slice_of(identity, bytes);
        let session = exchange(ssl)
            .and_then(|exchange| exchange.with_key(Some(identity), |psk| session(ssl, psk)));
        *found = session.unwrap_or(ptr::null_mut());
    }
    1
}

unsafe extern "C" fn use_session(
    ssl: *mut SSL,
    _hash: *const EVP_MD,
    identity: *mut *const c_uchar,
    bytes: *mut usize,
    offered: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: the connection is alive, and the others are places for what is offered. The session becomes
    // OpenSSL's. The identity lies on the heap in the connection's exchange; that of a host stays as it was
    // made until its handshake is done, and OpenSSL reads it only then. (`_hash` is that of the only suite.)
    unsafe {
        let found = exchange(ssl).and_then(|exchange| {
            exchange.with_key(None, |psk| {
                let name = psk.identity.as_bytes();
                (name.as_ptr(), name.len(), session(ssl, psk))
            })
        });
        let (name, name_bytes, session) = found.unwrap_or((ptr::null(), 0, ptr::null_mut()));
        *identity = name;
        *bytes = name_bytes;
        *offered = session;
    }
    1
}

/// A session with the key in it; null if there is no memory, or the system forbids the suite.
///
/// # Safety
/// The connection is alive.
unsafe fn session(ssl: *mut SSL, psk: &TlsPsk) -> *mut SSL_SESSION {
    let number = TlsSuite::of(psk.hash).number();
    // SAFETY: the connection is alive, the number has two bytes, the key as many as it says; a session that could
    // not be made is freed, and nobody else has it.
    unsafe {
        let cipher = SSL_CIPHER_find(ssl, number.as_ptr());
        let session = SSL_SESSION_new();
        if cipher.is_null() || session.is_null() {
            SSL_SESSION_free(session);
            return ptr::null_mut();
        }
        let made = SSL_SESSION_set1_master_key(session, psk.key.as_ptr(), psk.key.len()) == 1
            && SSL_SESSION_set_cipher(session, cipher) == 1
            && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
        if made {
            return session;
        }
        SSL_SESSION_free(session);
        ptr::null_mut()
    }
}

/// Bytes of OpenSSL's; none if it gives none.
///
/// # Safety
/// There are so many at `bytes` for `'a`, or it is null.
unsafe fn slice_of<'a>(bytes: *const c_uchar, count: usize) -> &'a [u8] {
    if bytes.is_null() {
        return &[];
    }
    // SAFETY: as above.
    unsafe { slice::from_raw_parts(bytes, count) }
}
