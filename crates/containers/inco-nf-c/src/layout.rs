//! The types of `include/inco_function.h`.

use std::ffi::{c_char, c_void};

/// `INCO_FUNCTION_VERSION`.
pub const VERSION: u32 = 1;
/// `INCO_NEVER`.
pub(crate) const NEVER: u64 = u64::MAX;
/// `enum inco_verdict`.
pub(crate) const FORWARD: u8 = 0;
pub(crate) const ANSWER: u8 = 1;
pub(crate) const DROP: u8 = 2;
pub(crate) const CONSUME: u8 = 3;

/// `struct inco_number`.
#[repr(C)]
#[derive(Debug)]
pub struct Number {
    pub(crate) name: *const c_char,
    pub(crate) help: *const c_char,
    pub(crate) is_gauge: bool,
}

/// `struct inco_setup`.
#[repr(C)]
#[derive(Debug)]
pub struct Setup {
    pub(crate) seed: u64,
    pub(crate) instance: u32,
    pub(crate) ports: u8,
}

/// `struct inco_packet`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub(crate) data: *mut u8,
    pub(crate) len: u32,
    pub(crate) headroom: u32,
    pub(crate) tailroom: u32,
    pub(crate) verdict: u8,
    pub(crate) port: u8,
    pub(crate) reason: u8,
    pub(crate) reserved: u8,
}

/// `struct inco_summary`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Summary {
    pub(crate) entries: u64,
    pub(crate) flows: u64,
    pub(crate) flows_limit: u64,
}

/// `struct inco_function`. A callback is [`None`] where C has written `NULL`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Description {
    pub(crate) version: u32,
    pub(crate) name: *const c_char,
    pub(crate) help: *const c_char,
    pub(crate) reasons: *const Number,
    pub(crate) reasons_count: usize,
    pub(crate) metrics: *const Number,
    pub(crate) metrics_count: usize,
    pub(crate) compile: Option<Compile>,
    pub(crate) free_configuration: Option<Free>,
    pub(crate) create: Option<Create>,
    pub(crate) reload: Option<Reload>,
    pub(crate) process: Option<Process>,
    pub(crate) destroy: Option<Free>,
    pub(crate) due: Option<Due>,
    pub(crate) tick: Option<Tick>,
    pub(crate) values: Option<Values>,
    pub(crate) summary: Option<Summarise>,
}

pub(crate) type Compile =
    unsafe extern "C" fn(*const c_char, usize, *const Setup, *mut c_char, usize) -> *mut c_void;
pub(crate) type Free = unsafe extern "C" fn(*mut c_void);
pub(crate) type Create = unsafe extern "C" fn(*mut c_void, *const Setup) -> *mut c_void;
pub(crate) type Reload = unsafe extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void;
pub(crate) type Process =
    unsafe extern "C" fn(*mut c_void, *mut Packet, usize, u8, *mut crate::outbox::Outbox, u64);
pub(crate) type Due = unsafe extern "C" fn(*const c_void) -> u64;
pub(crate) type Tick = unsafe extern "C" fn(*mut c_void, *mut crate::outbox::Outbox, u64);
pub(crate) type Values = unsafe extern "C" fn(*const c_void, *mut u64);
pub(crate) type Summarise = unsafe extern "C" fn(*const c_void, *mut Summary);

// As the C compiler lays them out on machines with 64 bits.
const _: () = assert!(size_of::<Packet>() == 24 && size_of::<Number>() == 24 && size_of::<Setup>() == 16);
const _: () = assert!(size_of::<Description>() == 17 * 8 && size_of::<Summary>() == 24);
