//! The binary interface of libibverbs and librdmacm, as far as this provider uses it.
//!
//! Both libraries keep it stable under the names `libibverbs.so.1` and `librdmacm.so.1`. Names, order
//! and meaning of all fields are those of rdma-core's `infiniband/verbs.h` and `rdma/rdma_cma.h`;
//! values of enumerations are theirs too. Structures that only the libraries allocate end with the
//! last field that is used here. Sizes and offsets are asserted at the end of the file, with the
//! figures of a C compiler on x86-64; they are the same on every 64-bit Linux.

#![allow(non_camel_case_types, reason = "the names of the C headers")]

use std::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
pub(super) struct ibv_device {
    ops: [*mut c_void; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
    /// NUL-terminated, for example `mlx5_0` or `rxe0`.
    pub(super) name: [c_char; 64],
}

/// The calls that libibverbs makes through the context, because they are inline functions in C.
#[repr(C)]
pub(super) struct ibv_context_ops {
    compat_0: [*mut c_void; 7],
    pub(super) alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    bind_mw: *mut c_void,
    pub(super) dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    compat_create_cq: *mut c_void,
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    compat_1: [*mut c_void; 7],
    pub(super) post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    compat_2: [*mut c_void; 4],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(super) post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    compat_3: [*mut c_void; 5],
}

#[repr(C)]
pub(super) struct ibv_context {
    pub(super) device: *mut ibv_device,
    pub(super) ops: ibv_context_ops,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

#[repr(C)]
pub(super) struct ibv_pd {
    pub(super) context: *mut ibv_context,
}

#[repr(C)]
pub(super) struct ibv_comp_channel {
    pub(super) context: *mut ibv_context,
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct ibv_cq {
    pub(super) context: *mut ibv_context,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
}

#[repr(C)]
pub(super) struct ibv_mr {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct ibv_mw {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) rkey: u32,
    pub(super) handle: u32,
    pub(super) kind: c_int,
}

/// Only ever behind a pointer.
#[repr(C)]
pub(super) struct ibv_srq {
    context: *mut ibv_context,
}

#[repr(C)]
pub(super) struct ibv_srq_init_attr {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

#[repr(C)]
pub(super) struct ibv_qp {
    pub(super) context: *mut ibv_context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut ibv_pd,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_device_attr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_int,
    pub(super) max_ee: c_int,
    pub(super) max_rdd: c_int,
    pub(super) max_mw: c_int,
    pub(super) unused_limits: [c_int; 8],
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    pub(super) max_srq_sge: c_int,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_qp_cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct ibv_qp_init_attr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_ah_attr {
    pub(super) grh: [u64; 3],
    pub(super) rest: [u8; 8],
}

#[repr(C)]
pub(super) struct ibv_qp_attr {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: ibv_qp_cap,
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) alt_ah_attr: ibv_ah_attr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct rdma_part {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// The `wr` union; its largest member (for atomics) gives the size.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union wr_part {
    pub(super) rdma: rdma_part,
    pub(super) largest: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_mw_bind_info {
    pub(super) mr: *mut ibv_mr,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) mw_access_flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct bind_mw_part {
    pub(super) mw: *mut ibv_mw,
    pub(super) rkey: u32,
    pub(super) bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_send_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    pub(super) invalidate_rkey: u32,
    pub(super) wr: wr_part,
    pub(super) xrc_remote_srqn: u32,
    pub(super) bind_mw: bind_mw_part,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_recv_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_recv_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// With [`IBV_WC_WITH_INV`]: the key that the message invalidated.
    pub(super) invalidated_rkey: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

#[repr(C)]
pub(super) struct ibv_async_event {
    /// A pointer to what it is about, or in the first four bytes a port number.
    pub(super) element: *mut c_void,
    pub(super) event_type: c_int,
}

#[repr(C)]
pub(super) struct rdma_event_channel {
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct rdma_cm_id {
    pub(super) verbs: *mut ibv_context,
    pub(super) channel: *mut rdma_event_channel,
    pub(super) context: *mut c_void,
    pub(super) qp: *mut ibv_qp,
    pub(super) src_addr: libc::sockaddr_storage,
    pub(super) dst_addr: libc::sockaddr_storage,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct rdma_conn_param {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

#[repr(C)]
pub(super) struct rdma_cm_event {
    pub(super) id: *mut rdma_cm_id,
    pub(super) listen_id: *mut rdma_cm_id,
    pub(super) event: c_int,
    pub(super) status: c_int,
    /// Valid in events of connected services, which are all that is used here.
    pub(super) conn: rdma_conn_param,
}

pub(super) const IBV_TRANSPORT_IB: c_int = 0;
pub(super) const IBV_QPT_RC: c_int = 2;
pub(super) const IBV_MW_TYPE_2: c_int = 2;

pub(super) const IBV_DEVICE_MEM_WINDOW_TYPE_2A: c_uint = 1 << 23;
pub(super) const IBV_DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;

pub(super) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(super) const IBV_ACCESS_MW_BIND: c_int = 1 << 4;

pub(super) const IBV_QP_STATE: c_int = 1;
pub(super) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const IBV_QPS_ERR: c_int = 6;

pub(super) const IBV_WR_RDMA_WRITE: c_int = 0;
pub(super) const IBV_WR_SEND: c_int = 2;
pub(super) const IBV_WR_RDMA_READ: c_int = 4;
pub(super) const IBV_WR_BIND_MW: c_int = 8;
pub(super) const IBV_WR_SEND_WITH_INV: c_int = 9;

pub(super) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const IBV_SEND_INLINE: c_uint = 1 << 3;

pub(super) const IBV_WC_SUCCESS: c_int = 0;
pub(super) const IBV_WC_WR_FLUSH_ERR: c_int = 5;
pub(super) const IBV_WC_REM_ACCESS_ERR: c_int = 10;
pub(super) const IBV_WC_RETRY_EXC_ERR: c_int = 12;
pub(super) const IBV_WC_RNR_RETRY_EXC_ERR: c_int = 13;
pub(super) const IBV_WC_RESP_TIMEOUT_ERR: c_int = 20;
pub(super) const IBV_WC_WITH_INV: c_uint = 1 << 3;

pub(super) const IBV_EVENT_CQ_ERR: c_int = 0;
pub(super) const IBV_EVENT_COMM_EST: c_int = 4;
pub(super) const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub(super) const IBV_EVENT_PORT_ACTIVE: c_int = 9;
pub(super) const IBV_EVENT_PORT_ERR: c_int = 10;

pub(super) const RDMA_PS_TCP: c_int = 0x0106;

/// Options of an identifier (`rdma/rdma_cma.h`).
pub(super) const RDMA_OPTION_ID: c_int = 0;
pub(super) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

pub(super) const RDMA_CM_EVENT_ADDR_RESOLVED: c_int = 0;
pub(super) const RDMA_CM_EVENT_ADDR_ERROR: c_int = 1;
pub(super) const RDMA_CM_EVENT_ROUTE_RESOLVED: c_int = 2;
pub(super) const RDMA_CM_EVENT_ROUTE_ERROR: c_int = 3;
pub(super) const RDMA_CM_EVENT_CONNECT_REQUEST: c_int = 4;
pub(super) const RDMA_CM_EVENT_CONNECT_ERROR: c_int = 6;
pub(super) const RDMA_CM_EVENT_UNREACHABLE: c_int = 7;
pub(super) const RDMA_CM_EVENT_REJECTED: c_int = 8;
pub(super) const RDMA_CM_EVENT_ESTABLISHED: c_int = 9;
pub(super) const RDMA_CM_EVENT_DISCONNECTED: c_int = 10;
pub(super) const RDMA_CM_EVENT_DEVICE_REMOVAL: c_int = 11;
pub(super) const RDMA_CM_EVENT_TIMEWAIT_EXIT: c_int = 15;

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(ibv_device, name) == 24);
    assert!(size_of::<ibv_context_ops>() == 256);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 11 * 8);
    assert!(offset_of!(ibv_context_ops, post_srq_recv) == 20 * 8);
    assert!(offset_of!(ibv_context_ops, post_send) == 25 * 8);
    assert!(size_of::<ibv_srq_init_attr>() == 24);
    assert!(offset_of!(ibv_context, async_fd) == 268);
    assert!(offset_of!(ibv_comp_channel, fd) == 8);
    assert!(size_of::<ibv_mr>() == 48 && offset_of!(ibv_mr, lkey) == 36);
    assert!(size_of::<ibv_mw>() == 32 && offset_of!(ibv_mw, rkey) == 16);
    assert!(offset_of!(ibv_qp, qp_num) == 52);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(offset_of!(ibv_device_attr, max_qp_wr) == 112);
    assert!(offset_of!(ibv_device_attr, max_mw) == 176);
    assert!(offset_of!(ibv_device_attr, max_srq) == 212);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, min_rnr_timer) == 128);
    assert!(size_of::<ibv_send_wr>() == 128 && offset_of!(ibv_send_wr, bind_mw) == 80);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_wc>() == 48 && offset_of!(ibv_wc, wc_flags) == 36);
    assert!(size_of::<ibv_async_event>() == 16);
    assert!(offset_of!(rdma_cm_id, src_addr) == 32 && offset_of!(rdma_cm_id, dst_addr) == 160);
    assert!(size_of::<rdma_conn_param>() == 24);
    assert!(offset_of!(rdma_cm_event, conn) == 24);
};
