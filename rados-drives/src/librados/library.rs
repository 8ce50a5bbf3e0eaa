//! librados, loaded when it is first asked for.
//!
//! The program does not link it: it starts on machines without Ceph, and says what is missing only when a drive in a cluster is
//! wanted. Once loaded it stays loaded. The declarations are those of `rados/librados.h` (Ceph 14 and later, which has all of
//! them under the name `librados.so.2`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::sync::OnceLock;
use std::time::Duration;

use crate::ending;

/// `rados_t`, `rados_ioctx_t`, `rados_completion_t`, `rados_write_op_t`: pointers to what only the library knows.
pub(super) type Opaque = *mut c_void;

/// `rados_callback_t`
pub(super) type Callback = unsafe extern "C" fn(completion: Opaque, argument: *mut c_void);

/// Declares the table of the library's functions, and how it is filled.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, under the names that they have in the library.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load(file: &CStr) -> Result<Self, String> {
                let handle = open(file)?;
                Ok(Self {
                    $($name: {
                        let symbol = find(handle, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the symbol is the function of that name, and the type is the one that the library's
                        // header gives it; both are stable under this file name.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    rados_create2(*mut Opaque, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(Opaque, *const c_char) -> c_int;
    rados_conf_set(Opaque, *const c_char, *const c_char) -> c_int;
    rados_connect(Opaque) -> c_int;
    rados_shutdown(Opaque);
    rados_getaddrs(Opaque, *mut *mut c_char) -> c_int;
    rados_buffer_free(*mut c_char);
    rados_wait_for_latest_osdmap(Opaque) -> c_int;
    rados_ioctx_create(Opaque, *const c_char, *mut Opaque) -> c_int;
    rados_ioctx_destroy(Opaque);
    rados_aio_create_completion2(*mut c_void, Callback, *mut Opaque) -> c_int;
    rados_aio_get_return_value(Opaque) -> c_int;
    rados_aio_release(Opaque);
    rados_aio_read(Opaque, *const c_char, Opaque, *mut c_char, usize, u64) -> c_int;
    rados_aio_write_op_operate(Opaque, Opaque, Opaque, *const c_char, *mut libc::time_t, c_int) -> c_int;
    rados_create_write_op() -> Opaque;
    rados_release_write_op(Opaque);
    rados_write_op_cmpxattr(Opaque, *const c_char, u8, *const c_char, usize);
    rados_write_op_setxattr(Opaque, *const c_char, *const c_char, usize);
    rados_write_op_write(Opaque, *const c_char, usize, u64);
    rados_write_op_zero(Opaque, u64, u64);
    rados_write_op_remove(Opaque);
    rados_write_op_operate(Opaque, Opaque, *const c_char, *mut libc::time_t, c_int) -> c_int;
    rados_getxattr(Opaque, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
    rados_lock_exclusive(Opaque, *const c_char, *const c_char, *const c_char, *const c_char, *mut libc::timeval, u8) -> c_int;
    rados_unlock(Opaque, *const c_char, *const c_char, *const c_char) -> c_int;
    rados_list_lockers(Opaque, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize,
        *mut c_char, *mut usize, *mut c_char, *mut usize) -> isize;
    rados_break_lock(Opaque, *const c_char, *const c_char, *const c_char, *const c_char) -> c_int;
    rados_mon_command(Opaque, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize,
        *mut *mut c_char, *mut usize) -> c_int;
}

impl Library {
    /// The library of this machine, loaded at the first call.
    ///
    /// # Errors
    /// Why it cannot be loaded, with the remedy.
    pub(super) fn get() -> Result<&'static Self, String> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        LOADED
            .get_or_init(|| {
                let library = Self::load(c"librados.so.2")?;
                // SAFETY: the function is one of on_exit(3), and lives as long as the program.
                match unsafe { on_exit(end_process, std::ptr::null_mut()) } {
                    0 => Ok(library),
                    _ => Err("there is no memory for an exit handler".to_owned()),
                }
            })
            .as_ref()
            .map_err(Clone::clone)
    }
}

unsafe extern "C" {
    /// on_exit(3) of the GNU C library.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// How long the end of the process waits for clients that are ending.
const END_MAX: Duration = Duration::from_secs(5);

/// Ends the process. Handlers run in the reverse order of their registration, so this one comes before the destructors of the
/// library, whose threads would find destroyed what they use, and abort the process.
extern "C" fn end_process(status: c_int, _: *mut c_void) {
    ending::wait(END_MAX);
    // SAFETY: it ends the process, and touches no memory. What Rust prints is written by now.
    unsafe { libc::_exit(status) }
}

fn open(file: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name is NUL-terminated. The library's constructors do nothing that this program depends on.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    match handle.is_null() {
        true => Err(missing()),
        false => Ok(handle),
    }
}

fn find(handle: *mut c_void, name: &'static str) -> Result<*mut c_void, String> {
    // SAFETY: the handle is an open library's, and the name is NUL-terminated by the macro above.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
    match symbol.is_null() {
        true => Err(missing()),
        false => Ok(symbol),
    }
}

/// What the dynamic linker said last.
fn missing() -> String {
    // SAFETY: dlerror gives null or a NUL-terminated text that is valid until the thread's next call.
    let reason = unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => String::from("no reason given"),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    };
    format!(
        "librados cannot be loaded ({reason}): install the package librados2 (Ceph 14 or later)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_and_one_that_is_another_are_named_with_the_remedy() {
        // Every Linux program has the second one, and it has no objects.
        for file in [c"librados-of-no-machine.so.2", c"libc.so.6"] {
            let text = Library::load(file).err().expect("it is not librados");
            assert!(text.contains("librados2"), "{text}");
        }
    }
}
