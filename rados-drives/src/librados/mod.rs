//! Clients of a real cluster, by librados.
//!
//! Guarantees: memory that the library writes to lives until it says that it is done; a client is ended by a thread of its own,
//! because the last one who has it may be a callback of the library, which the end of the client waits for.
//!
//! The functions that are called are those of [`library`].

mod library;
mod locking;
mod refusals;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use drives::ErrorKind;
use reactor::sync::{Permit, oneshot};

use crate::address::RadosAddress;
use crate::client::{
    Change, Client, Cluster, Errno, Filled, Holder, Memory, Pending, Refusal, Times,
};
use crate::ending::Ending;
pub(crate) use library::before_exit;
use library::{Library, Opaque};
use locking::{CLASS, LOCK, Request};
use refusals::{Key, files_in, refused, unconnected, unread};

/// `LIBRADOS_CMPXATTR_OP_EQ`
const EQUAL: u8 = 1;

/// `LIBRADOS_OPERATION_FULL_TRY`: what a full cluster has no room for is an error, and does not wait.
const FULL_TRY: c_int = 64;

/// How long an address stays shut out, in seconds: for good. The leading monitor adds this to its own clock, and ends at the last
/// second that an entry can have, on 2106-02-07 (since Ceph 14: `operator+=(utime_t&, double)` in `src/include/utime.h`,
/// <https://github.com/ceph/ceph/pull/21113>). It removes an entry when its clock is past that, and OSDs look at no clock. So
/// whatever is corrected on a monitor's clock, a client that slept is refused. An entry is a line of the cluster's map.
const SHUT_OUT_SECONDS: u32 = u32::MAX;

/// What monitors take for no address, and the caps of `profile rbd` for one: they look at the caps first, and change nothing then.
const NO_ADDRESS: &str = "nobody/0";

/// Bytes of an attribute, and of what a list of lock holders has, at most.
const TEXT_BYTES_MAX: usize = 4096;

/// A cluster that an address names.
pub(crate) struct Ceph(pub(crate) RadosAddress);

impl Cluster for Ceph {
    fn connect(&self, times: Times) -> Result<Arc<dyn Client>, Refusal> {
        let library = Library::get().map_err(|text| Refusal {
            kind: ErrorKind::NotFound,
            text,
        })?;
        CephClient::connect(library, &self.0, times)
            .map(|client| Arc::new(client) as Arc<dyn Client>)
    }
}

/// A connected client, and its access to one pool.
struct CephClient {
    held: Arc<Held>,
    addresses: Vec<String>,
}

/// The handles of a client, which calls that are under way have a share of.
struct Held(Handles);

/// What has to be given back to the library, once.
#[derive(Clone, Copy)]
struct Handles {
    rados: &'static Library,
    cluster: Opaque,
    /// Null before there is one.
    pool: Opaque,
}

// SAFETY: librados' handles may be used by any thread, and by several at the same time (rados/librados.h, `rados_t`).
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl Handles {
    /// Nobody uses them any more. Blocks.
    fn end(self) {
        // SAFETY: both handles are open, and who calls this has the last copy of them. Calls that are under way keep the
        // client, so there are none.
        unsafe {
            if !self.pool.is_null() {
                (self.rados.rados_ioctx_destroy)(self.pool);
            }
            (self.rados.rados_shutdown)(self.cluster);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (handles, ending) = (self.0, Ending::begin());
        reactor::detach(move || {
            handles.end();
            drop(ending);
        });
    }
}

fn check(result: c_int) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno(result.saturating_neg()))
}

/// What comes from names that were checked, and from our own texts, has no zero in it.
fn text(text: &str) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno(libc::EINVAL))
}

impl CephClient {
    fn connect(
        library: &'static Library,
        address: &RadosAddress,
        times: Times,
    ) -> Result<Self, Refusal> {
        let mut handles = Handles {
            rados: library,
            cluster: ptr::null_mut(),
            pool: ptr::null_mut(),
        };
        let user = format!("client.{}", address.user());
        let created = text(&user).and_then(|user| {
            // SAFETY: the out-pointer and the names are valid for the call; a null cluster name is the usual one.
            check(unsafe {
                (library.rados_create2)(&raw mut handles.cluster, ptr::null(), user.as_ptr(), 0)
            })
        });
        if let Err(error) = created {
            return Err(refused(
                ErrorKind::Io,
                format!("no client can be made: {error}"),
            ));
        }
        match handles.set_up(address, times) {
            Ok((pool, addresses)) => {
                handles.pool = pool;
                Ok(Self {
                    held: Arc::new(Held(handles)),
                    addresses,
                })
            }
            Err(refusal) => {
                handles.end();
                Err(refusal)
            }
        }
    }
}

impl Handles {
    /// Configures, connects, and finds the pool.
    fn set_up(
        &self,
        address: &RadosAddress,
        times: Times,
    ) -> Result<(Opaque, Vec<String>), Refusal> {
        self.read_configuration(address.conf())?;
        let set = |option: &CStr, value: &str| {
            let value = text(value)?;
            // SAFETY: the handle is open, and both texts are valid for the call.
            check(unsafe {
                (self.rados.rados_conf_set)(self.cluster, option.as_ptr(), value.as_ptr())
            })
        };
        let seconds = |time: Duration| time.as_secs().max(1).to_string();
        let (connect, command) = (seconds(times.connect), seconds(times.command));
        set(c"client_mount_timeout", &connect)
            .and_then(|_| set(c"rados_mon_op_timeout", &command))
            .and_then(|_| set(c"rados_osd_op_timeout", &command))
            // A new client asks whoever has the socket of that name, for seconds where that is a process that stands still.
            .and_then(|_| set(c"admin_socket", ""))
            .map_err(|error| refused(ErrorKind::Io, format!("it cannot be configured: {error}")))?;
        // SAFETY: the handle is open.
        let connected = check(unsafe { (self.rados.rados_connect)(self.cluster) });
        connected.map_err(|error| unconnected(address, error, &Key::find(&self.keyrings())))?;
        let name =
            text(address.pool()).map_err(|error| refused(ErrorKind::Invalid, error.to_string()))?;
        let mut pool = ptr::null_mut();
        // SAFETY: the handle is connected, and the name and the out-pointer are valid for the call.
        let found = check(unsafe {
            (self.rados.rados_ioctx_create)(self.cluster, name.as_ptr(), &raw mut pool)
        });
        found.map_err(|error| match error {
            Errno::NOT_FOUND => refused(
                ErrorKind::NotFound,
                format!(
                    "the cluster has no pool '{0}': make it (`ceph osd pool create {0}`), or name another one",
                    address.pool()
                ),
            ),
            error => refused(
                ErrorKind::Io,
                format!("the pool '{}' cannot be used: {error}", address.pool()),
            ),
        })?;
        Ok((pool, self.addresses()))
    }

    fn read_configuration(&self, conf: Option<&Path>) -> Result<(), Refusal> {
        let named = conf.map(|conf| text(&conf.to_string_lossy()));
        let named = named
            .transpose()
            .map_err(|error| refused(ErrorKind::Invalid, error.to_string()))?;
        let path = named.as_ref().map_or(ptr::null(), |conf| conf.as_ptr());
        // SAFETY: the handle is open, and the path is null or valid for the call.
        let read = check(unsafe { (self.rados.rados_conf_read_file)(self.cluster, path) });
        read.map(|_| ()).map_err(|error| unread(conf, error))
    }

    /// The files in which the configuration lets the library look for keys.
    fn keyrings(&self) -> Vec<PathBuf> {
        let mut value = vec![0_u8; TEXT_BYTES_MAX];
        // SAFETY: the handle is open, the name is valid for the call, and the value is as long as is said.
        let got = check(unsafe {
            (self.rados.rados_conf_get)(
                self.cluster,
                c"keyring".as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        });
        let named = CStr::from_bytes_until_nul(&value)
            .ok()
            .filter(|_| got.is_ok());
        named.map_or_else(Vec::new, |named| files_in(&named.to_string_lossy()))
    }

    /// How others shut this client out.
    fn addresses(&self) -> Vec<String> {
        let mut addresses = ptr::null_mut();
        // SAFETY: the handle is connected, and the out-pointer is valid for the call.
        let got = check(unsafe { (self.rados.rados_getaddrs)(self.cluster, &raw mut addresses) });
        if got.is_err() || addresses.is_null() {
            return Vec::new();
        }
        // SAFETY: the library gave a NUL-terminated text, which is freed once, below.
        let text = unsafe { CStr::from_ptr(addresses) }
            .to_string_lossy()
            .into_owned();
        // SAFETY: as above.
        unsafe { (self.rados.rados_buffer_free)(addresses) };
        parse_addresses(&text)
    }

    /// Builds an operation of changes, and lets `run` have it.
    fn with_changes<T>(
        &self,
        changes: &[Change<'_>],
        run: impl FnOnce(Opaque) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let library = self.rados;
        // SAFETY: it takes nothing, and gives an operation that is released below.
        let operation = unsafe { (library.rados_create_write_op)() };
        let added = changes.iter().try_for_each(|change| {
            let named = match change {
                Change::Expect(name, _) | Change::Set(name, _) => text(name)?,
                _ => CString::default(),
            };
            let name = named.as_ptr();
            // SAFETY: the operation is open. Names are NUL-terminated, data as long as is said; the library copies both.
            unsafe {
                match *change {
                    Change::Expect(_, value) => (library.rados_write_op_cmpxattr)(
                        operation,
                        name,
                        EQUAL,
                        value.as_ptr().cast(),
                        value.len(),
                    ),
                    Change::Set(_, value) => (library.rados_write_op_setxattr)(
                        operation,
                        name,
                        value.as_ptr().cast(),
                        value.len(),
                    ),
                    Change::Replace(data) => (library.rados_write_op_write_full)(
                        operation,
                        data.as_ptr().cast(),
                        data.len(),
                    ),
                    Change::Write(at, data) => (library.rados_write_op_write)(
                        operation,
                        data.as_ptr().cast(),
                        data.len(),
                        at,
                    ),
                    Change::Zero(at, len) => (library.rados_write_op_zero)(operation, at, len),
                    Change::Remove => (library.rados_write_op_remove)(operation),
                }
            }
            Ok(())
        });
        let ran = added.and_then(|()| run(operation));
        // SAFETY: it is released once; what is under way has the operation's content.
        unsafe { (library.rados_release_write_op)(operation) };
        ran
    }

    /// Has an address put on the blocklist, by the command that is called so.
    fn block(&self, address: &str, name: &str, field: &str) -> Result<(), Errno> {
        self.ask_monitors(&serde_json::json!({
            "prefix": format!("osd {name}"),
            field: "add",
            "addr": address,
            "expire": f64::from(SHUT_OUT_SECONDS),
        }))
    }

    /// Asks the cluster's monitors.
    fn ask_monitors(&self, command: &serde_json::Value) -> Result<(), Errno> {
        let command = text(&command.to_string())?;
        let commands = [command.as_ptr()];
        let (mut output, mut output_len) = (ptr::null_mut::<c_char>(), 0);
        let (mut said, mut said_len) = (ptr::null_mut::<c_char>(), 0);
        // SAFETY: the handle is connected; one command, no input, and out-pointers that are valid for the call.
        let result = unsafe {
            (self.rados.rados_mon_command)(
                self.cluster,
                commands.as_ptr(),
                commands.len(),
                ptr::null(),
                0,
                &raw mut output,
                &raw mut output_len,
                &raw mut said,
                &raw mut said_len,
            )
        };
        for text in [output, said] {
            if !text.is_null() {
                // SAFETY: the library gave it, and it is freed once.
                unsafe { (self.rados.rados_buffer_free)(text) };
            }
        }
        check(result).map(|_| ())
    }
}

/// The addresses in what `rados_getaddrs` says: one, or several in brackets; each may have the protocol's version before it, by
/// which nobody is shut out.
fn parse_addresses(text: &str) -> Vec<String> {
    let plain = |address: &str| {
        let address = address.trim();
        let without = ["v1:", "v2:", "any:"]
            .iter()
            .find_map(|version| address.strip_prefix(version));
        without.unwrap_or(address).to_owned()
    };
    let list = text
        .strip_prefix("[v")
        .and_then(|rest| rest.strip_suffix(']'));
    let list = list.map_or_else(|| text.to_owned(), |list| format!("v{list}"));
    let mut addresses: Vec<String> = list
        .split(',')
        .map(plain)
        .filter(|address| !address.is_empty())
        .collect();
    addresses.dedup();
    addresses
}

/// A read that is under way: what the library writes to, and who waits.
struct Reading {
    memory: Memory,
    sender: oneshot::Sender<Filled>,
    client: Arc<Held>,
    room: Permit,
}

/// A change that is under way.
struct Changing {
    sender: oneshot::Sender<Result<(), Errno>>,
    client: Arc<Held>,
    room: Permit,
}

/// # Safety
/// `argument` is a [`Reading`] in a box that nobody else has.
unsafe extern "C" fn read_ended(completion: Opaque, argument: *mut c_void) {
    // SAFETY: by the contract of this function.
    let Reading {
        memory,
        sender,
        client,
        room,
    } = *unsafe { Box::from_raw(argument.cast::<Reading>()) };
    // SAFETY: the completion is valid in its own callback.
    let result = unsafe { (client.0.rados.rados_aio_get_return_value)(completion) };
    drop(room);
    // Who asked may have gone.
    let _ = sender.send((check(result), memory));
}

/// # Safety
/// `argument` is a [`Changing`] in a box that nobody else has.
unsafe extern "C" fn change_ended(completion: Opaque, argument: *mut c_void) {
    // SAFETY: by the contract of this function.
    let Changing {
        sender,
        client,
        room,
    } = *unsafe { Box::from_raw(argument.cast::<Changing>()) };
    // SAFETY: the completion is valid in its own callback.
    let result = unsafe { (client.0.rados.rados_aio_get_return_value)(completion) };
    drop(room);
    // Who asked may have gone.
    let _ = sender.send(check(result).map(|_| ()));
}

/// What came of a call that was not made.
fn failed<T>(error: Errno) -> Pending<T> {
    let (sender, receiver) = oneshot::channel();
    let _ = sender.send(Err(error));
    receiver
}

impl CephClient {
    /// Calls the class `lock` for an object.
    fn call(&self, object: &str, request: &Request) -> Result<(), Errno> {
        let object = text(object)?;
        let (input, len) = (request.input.as_ptr().cast(), request.input.len());
        let (method, result) = (request.method.as_ptr(), ptr::null_mut());
        let rados = self.held.0.rados;
        self.held.0.with_changes(&[], |operation| {
            // SAFETY: operation and pool are open. Names are NUL-terminated, the input as long as is said; the library copies all. It gives
            // the call's result where there is room for it, and takes the present for a null time.
            let ran = unsafe {
                (rados.rados_write_op_exec)(operation, CLASS.as_ptr(), method, input, len, result);
                (rados.rados_write_op_operate)(
                    operation,
                    self.held.0.pool,
                    object.as_ptr(),
                    ptr::null_mut(),
                    FULL_TRY,
                )
            };
            check(ran).map(|_| ())
        })
    }

    /// A completion that gives `argument` to `ended`, and is released by [`submitted`](Self::submitted).
    fn completion(&self, ended: library::Callback, argument: *mut c_void) -> Result<Opaque, Errno> {
        let mut completion = ptr::null_mut();
        // SAFETY: the out-pointer is valid for the call; the callback takes what the argument is.
        let made = unsafe {
            (self.held.0.rados.rados_aio_create_completion2)(argument, ended, &raw mut completion)
        };
        check(made).map(|_| completion)
    }

    /// Lets the completion go, which the library keeps until it has called back, and says whether it will.
    fn submitted(&self, completion: Opaque, result: c_int) -> Result<(), Errno> {
        // SAFETY: the completion is released once.
        unsafe { (self.held.0.rados.rados_aio_release)(completion) };
        check(result).map(|_| ())
    }
}

impl Client for CephClient {
    fn addresses(&self) -> &[String] {
        &self.addresses
    }

    fn read(
        &self,
        object: &str,
        at: u64,
        memory: Memory,
        room: Permit,
    ) -> oneshot::Receiver<Filled> {
        let (sender, receiver) = oneshot::channel();
        let object = match text(object) {
            Ok(object) => object,
            Err(error) => {
                let _ = sender.send((Err(error), memory));
                return receiver;
            }
        };
        let mut reading = Box::new(Reading {
            memory,
            sender,
            client: self.held.clone(),
            room,
        });
        let bytes = reading.memory.bytes();
        let (data, len) = (bytes.as_mut_ptr(), bytes.len());
        let argument = Box::into_raw(reading);
        let submitted = self
            .completion(read_ended, argument.cast())
            .and_then(|completion| {
                // SAFETY: the pool is open; the memory is `len` bytes of what is in the box that the callback gets, and nobody
                // touches it before.
                let result = unsafe {
                    (self.held.0.rados.rados_aio_read)(
                        self.held.0.pool,
                        object.as_ptr(),
                        completion,
                        data.cast(),
                        len,
                        at,
                    )
                };
                self.submitted(completion, result)
            });
        if let Err(error) = submitted {
            // SAFETY: there is no callback, so nobody else has the box.
            let reading = unsafe { Box::from_raw(argument) };
            let _ = reading.sender.send((Err(error), reading.memory));
        }
        receiver
    }

    fn change(&self, object: &str, changes: &[Change<'_>], room: Permit) -> Pending<()> {
        let object = match text(object) {
            Ok(object) => object,
            Err(error) => return failed(error),
        };
        let (sender, receiver) = oneshot::channel();
        let argument = Box::into_raw(Box::new(Changing {
            sender,
            client: self.held.clone(),
            room,
        }));
        let submitted = self.held.0.with_changes(changes, |operation| {
            let completion = self.completion(change_ended, argument.cast())?;
            // SAFETY: operation, pool and completion are open; a null time is the present.
            let result = unsafe {
                (self.held.0.rados.rados_aio_write_op_operate)(
                    operation,
                    self.held.0.pool,
                    completion,
                    object.as_ptr(),
                    ptr::null_mut(),
                    FULL_TRY,
                )
            };
            self.submitted(completion, result)
        });
        if let Err(error) = submitted {
            // SAFETY: there is no callback, so nobody else has the box.
            let changing = unsafe { Box::from_raw(argument) };
            let _ = changing.sender.send(Err(error));
        }
        receiver
    }

    fn change_now(&self, object: &str, changes: &[Change<'_>]) -> Result<(), Errno> {
        let object = text(object)?;
        self.held.0.with_changes(changes, |operation| {
            // SAFETY: operation and pool are open; a null time is the present.
            let result = unsafe {
                (self.held.0.rados.rados_write_op_operate)(
                    operation,
                    self.held.0.pool,
                    object.as_ptr(),
                    ptr::null_mut(),
                    FULL_TRY,
                )
            };
            check(result).map(|_| ())
        })
    }

    fn read_now(&self, object: &str, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let object = text(object)?;
        let mut data = vec![0_u8; len];
        // SAFETY: the pool is open, and the data are as long as is said.
        let read = check(unsafe {
            (self.held.0.rados.rados_read)(
                self.held.0.pool,
                object.as_ptr(),
                data.as_mut_ptr().cast(),
                data.len(),
                at,
            )
        })?;
        data.truncate(read);
        Ok(data)
    }

    fn attribute(&self, object: &str, name: &str) -> Result<Vec<u8>, Errno> {
        let (object, name) = (text(object)?, text(name)?);
        let mut value = vec![0_u8; TEXT_BYTES_MAX];
        // SAFETY: the pool is open, and the value is as long as is said.
        let len = check(unsafe {
            (self.held.0.rados.rados_getxattr)(
                self.held.0.pool,
                object.as_ptr(),
                name.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        })?;
        value.truncate(len);
        Ok(value)
    }

    fn lock(&self, object: &str, cookie: &str, lease: Duration) -> Result<(), Errno> {
        self.call(object, &Request::lock(cookie, lease))
    }

    fn unlock(&self, object: &str, cookie: &str) -> Result<(), Errno> {
        self.call(object, &Request::unlock(cookie))
    }

    fn holder(&self, object: &str) -> Result<Option<Holder>, Errno> {
        let object = text(object)?;
        let mut texts: [Vec<u8>; 4] = std::array::from_fn(|_| vec![0; TEXT_BYTES_MAX]);
        let mut lens = texts.each_ref().map(Vec::len);
        let mut exclusive = 0;
        let pointers = texts
            .each_mut()
            .map(|text| text.as_mut_ptr().cast::<c_char>());
        let [tag_len, clients_len, cookies_len, addresses_len] = &mut lens;
        let [tag, clients, cookies, addresses] = pointers;
        // SAFETY: the pool is open, and each text is as long as is said.
        let listed = unsafe {
            (self.held.0.rados.rados_list_lockers)(
                self.held.0.pool,
                object.as_ptr(),
                LOCK.as_ptr(),
                &raw mut exclusive,
                tag,
                tag_len,
                clients,
                clients_len,
                cookies,
                cookies_len,
                addresses,
                addresses_len,
            )
        };
        let count = match c_int::try_from(listed).map_or(Err(Errno(libc::EOVERFLOW)), check) {
            Ok(count) => count,
            Err(error) if error.is_missing() => 0,
            Err(error) => return Err(error),
        };
        if count == 0 {
            return Ok(None);
        }
        // Each text ends with a zero; of several holders of what is locked by one the first is as good as any.
        let first = |text: &[u8]| {
            let end = text
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(text.len());
            String::from_utf8_lossy(&text[..end]).into_owned()
        };
        let [_, clients, cookies, addresses] = &texts;
        Ok(Some(Holder {
            client: first(clients),
            cookie: first(cookies),
            address: first(addresses),
        }))
    }

    fn break_lock(&self, object: &str, holder: &Holder) -> Result<(), Errno> {
        self.call(object, &Request::break_lock(holder)?)
    }

    fn shut_out(&self, address: &str) -> Result<(), Errno> {
        // `rados_blocklist_add` had another name before Ceph 16, and so had the command.
        match self.held.0.block(address, "blocklist", "blocklistop") {
            Err(Errno(libc::EINVAL)) => self.held.0.block(address, "blacklist", "blacklistop")?,
            asked => asked?,
        }
        // What this client reads and changes from here on reaches no daemon that does not know the map.
        // SAFETY: the handle is connected.
        check(unsafe { (self.held.0.rados.rados_wait_for_latest_osdmap)(self.held.0.cluster) })
            .map(|_| ())
    }

    fn check_may_shut_out(&self) -> Result<(), Errno> {
        match self.held.0.block(NO_ADDRESS, "blocklist", "blocklistop") {
            Err(error @ (Errno::NOT_PERMITTED | Errno::NO_ACCESS)) => Err(error),
            // The address is refused, or the command is not known, before Ceph 16.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_without_versions_and_brackets() {
        for (said, addresses) in [
            ("10.0.0.1:0/3", vec!["10.0.0.1:0/3"]),
            ("v2:10.0.0.1:0/3", vec!["10.0.0.1:0/3"]),
            ("[v2:10.0.0.1:0/3,v1:10.0.0.1:0/3]", vec!["10.0.0.1:0/3"]),
            ("[v2:[fe80::1]:0/3]", vec!["[fe80::1]:0/3"]),
            ("", vec![]),
        ] {
            assert_eq!(parse_addresses(said), addresses, "{said}");
        }
    }
}
