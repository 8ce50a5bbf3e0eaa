//! librados, loaded when it is first asked for.
//!
//! The program does not link it: it starts on machines without Ceph, and says what is missing only when a drive in a cluster is
//! wanted. Once loaded it stays loaded. The declarations are those of `rados/librados.h` (Ceph 14 and later, which has all of
//! them under the name `librados.so.2`).

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

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
            /// The functions are there as long as this is.
            _loaded: Loaded,
        }

        impl Library {
            fn load(file: &str) -> Result<Self, String> {
                let loaded = open(file)?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol is the function of that name, and the type is the one that the library's
                        // header gives it; both are stable under this file name.
                        let found = unsafe {
                            loaded.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                concat!(stringify!($name), "\0").as_bytes(),
                            )
                        };
                        *found.map_err(|error| missing(&error))?
                    },)*
                    _loaded: loaded,
                })
            }
        }
    };
}

functions! {
    rados_create2(*mut Opaque, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(Opaque, *const c_char) -> c_int;
    rados_conf_get(Opaque, *const c_char, *mut c_char, usize) -> c_int;
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
    rados_write_op_write_full(Opaque, *const c_char, usize);
    rados_write_op_zero(Opaque, u64, u64);
    rados_write_op_remove(Opaque);
    rados_write_op_exec(Opaque, *const c_char, *const c_char, *const c_char, usize, *mut c_int);
    rados_write_op_operate(Opaque, Opaque, *const c_char, *mut libc::time_t, c_int) -> c_int;
    rados_read(Opaque, *const c_char, *mut c_char, usize, u64) -> c_int;
    rados_getxattr(Opaque, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
    rados_list_lockers(Opaque, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize,
        *mut c_char, *mut usize, *mut c_char, *mut usize) -> isize;
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
                let library = Self::load("librados.so.2")?;
                match register_end() {
                    true => Ok(library),
                    false => Err("there is no memory for an exit handler".to_owned()),
                }
            })
            .as_ref()
            .map_err(Clone::clone)
    }
}

/// Makes [`end_process`] the first of the exit handlers again. OpenSSL, which the library connects with, registers its own at the
/// first connection, and that one takes from the library's threads what they use.
pub(crate) fn before_exit() {
    if REGISTERED.load(Ordering::Acquire) {
        // Without memory for it, the handler of the start is left.
        let _ = register_end();
    }
}

/// Whether the program ends by [`end_process`].
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Whether there was memory for it.
fn register_end() -> bool {
    let registered = at_exit(end_process);
    REGISTERED.fetch_or(registered, Ordering::AcqRel);
    registered
}

/// Registers an exit handler; whether there was memory for it.
fn at_exit(handler: extern "C" fn(c_int, *mut c_void)) -> bool {
    // SAFETY: the function is one of on_exit(3), and lives as long as the program.
    unsafe { on_exit(handler, std::ptr::null_mut()) == 0 }
}

unsafe extern "C" {
    /// on_exit(3) of the GNU C library.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Ends the process. Handlers run in the reverse order of their registration (on_exit(3)), so this one comes before the destructors
/// of the library, whose threads would find destroyed what they use, and abort the process.
extern "C" fn end_process(status: c_int, _: *mut c_void) {
    ending::wait(ending::WAIT_MAX);
    // SAFETY: it ends the process, and touches no memory. What Rust prints is written by now.
    unsafe { libc::_exit(status) }
}

fn open(file: &str) -> Result<Loaded, String> {
    // SAFETY: the library's constructors do nothing that this program depends on.
    let opened = unsafe { Loaded::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    opened.map_err(|error| missing(&error))
}

/// What the dynamic linker said, and the remedy.
fn missing(error: &libloading::Error) -> String {
    format!("librados cannot be loaded ({error}): install the package librados2 (Ceph 14 or later)")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What a library registers for the end of the process after it was loaded.
    extern "C" fn of_a_library(_: c_int, _: *mut c_void) {
        eprintln!("the library's own handler");
    }

    #[test]
    fn a_process_ends_with_its_code_and_runs_no_exit_handler_of_a_library() {
        const NAME: &str = "librados::library::tests::a_process_ends_with_its_code_and_runs_no_exit_handler_of_a_library";
        const CHILD: &str = "ONEFOLD_TEST_ENDS";
        if std::env::var_os(CHILD).is_some() {
            assert!(register_end() && at_exit(of_a_library));
            before_exit();
            std::process::exit(7);
        }
        let mut child = Command::new(std::env::current_exe().expect("a program"));
        let output = child
            .args(["--exact", NAME, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .expect("it starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{told}");
        assert!(!told.contains("own handler"), "{told}");
    }

    #[test]
    fn a_missing_library_and_one_that_is_another_are_named_with_the_remedy() {
        // Every Linux program has the second one, and it has no objects.
        for file in ["librados-of-no-machine.so.2", "libc.so.6"] {
            let text = Library::load(file).err().expect("it is not librados");
            assert!(text.contains("librados2"), "{text}");
        }
    }
}
