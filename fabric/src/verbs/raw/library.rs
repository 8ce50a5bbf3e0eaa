//! libibverbs and librdmacm, loaded when they are first asked for.
//!
//! The program does not link them: it starts on machines that have neither, and says what is missing
//! only when RDMA verbs are wanted. Once loaded they stay loaded.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::abi::*;
use crate::error::VerbsError;

/// Declares a table of a library's functions, and how it is filled.
macro_rules! functions {
    ($table:ident: $($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The functions are there as long as this is.
            _loaded: Library,
        }

        impl $table {
            fn load(file: &str) -> Result<Self, VerbsError> {
                let loaded = open(file)?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol is the function of that name, and the type is the one
                        // that the library's header gives it; both are stable under this file name.
                        let found = unsafe {
                            loaded.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                concat!(stringify!($name), "\0").as_bytes(),
                            )
                        };
                        *found.map_err(|error| missing(file, &error))?
                    },)*
                    _loaded: loaded,
                })
            }
        }
    };
}

functions! { Ibverbs:
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, u32);
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq(*mut ibv_srq) -> c_int;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(*mut ibv_async_event);
    ibv_event_type_str(c_int) -> *const c_char;
}

functions! { Rdmacm:
    rdma_create_event_channel() -> *mut rdma_event_channel;
    rdma_destroy_event_channel(*mut rdma_event_channel);
    rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
    rdma_destroy_id(*mut rdma_cm_id) -> c_int;
    rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
    rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
    rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
    rdma_destroy_qp(*mut rdma_cm_id);
    rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
    rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    rdma_disconnect(*mut rdma_cm_id) -> c_int;
    rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    rdma_get_devices(*mut c_int) -> *mut *mut ibv_context;
    rdma_free_devices(*mut *mut ibv_context);
    rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
}

/// Both libraries.
pub(in crate::verbs) struct Libraries {
    pub(super) ib: Ibverbs,
    pub(super) cm: Rdmacm,
}

impl Libraries {
    /// The libraries of this machine, loaded at the first call.
    pub(in crate::verbs) fn get() -> Result<&'static Self, VerbsError> {
        static LOADED: OnceLock<Result<Libraries, VerbsError>> = OnceLock::new();
        LOADED
            .get_or_init(|| Self::load("libibverbs.so.1", "librdmacm.so.1"))
            .as_ref()
            .map_err(Clone::clone)
    }

    fn load(ib: &str, cm: &str) -> Result<Self, VerbsError> {
        Ok(Self {
            ib: Ibverbs::load(ib)?,
            cm: Rdmacm::load(cm)?,
        })
    }

    /// The names of this machine's RDMA devices that are InfiniBand or RoCE ones.
    pub(in crate::verbs) fn device_names(&self) -> Vec<String> {
        let mut count = 0;
        // SAFETY: the out-pointer is valid for the call.
        let list = unsafe { (self.ib.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Vec::new();
        }
        let mut names = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the library returned `count` pointers to devices, which are valid until the list
            // is freed below; their names are NUL-terminated within the array.
            unsafe {
                let device = *list.add(index);
                if !device.is_null() && (*device).transport_type == IBV_TRANSPORT_IB {
                    let name = CStr::from_ptr((*device).name.as_ptr());
                    names.push(name.to_string_lossy().into_owned());
                }
            }
        }
        // SAFETY: the list came from `ibv_get_device_list` and is not used any more.
        unsafe { (self.ib.ibv_free_device_list)(list) };
        names
    }
}

fn open(file: &str) -> Result<Library, VerbsError> {
    // SAFETY: the libraries' constructors do nothing that this program depends on.
    let opened = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    opened.map_err(|error| missing(file, &error))
}

/// What the dynamic linker said.
fn missing(file: &str, error: &libloading::Error) -> VerbsError {
    VerbsError::LibraryMissing {
        file: file.to_owned(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_the_remedy() {
        let error = Libraries::load("libibverbs-of-no-machine.so.1", "librdmacm.so.1").err();
        let text = error.expect("it is missing").to_string();
        assert!(text.contains("libibverbs-of-no-machine.so.1"), "{text}");
        assert!(text.contains("ibverbs-providers"), "{text}");
        assert!(text.contains("rdma+soft://"), "{text}");
    }

    #[test]
    fn a_library_that_lacks_a_function_is_refused() {
        // Every Linux program has this one, and it has no verbs.
        let error = Libraries::load("libc.so.6", "libc.so.6").err();
        let text = error.expect("it has no verbs").to_string();
        assert!(
            text.contains("libc.so.6") && text.contains("ibv_"),
            "{text}"
        );
    }
}
