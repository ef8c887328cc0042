//! The runner of functions for functions in C. It is a static library, `libinco_function.a`, with the header
//! `include/inco_function.h`: a program in C describes its functions and calls `inco_main`, and is then what `inco-nf` is,
//! with these functions besides those of the library. It must not trust what C says of a packet, and cannot keep C from
//! writing elsewhere: a function in C is confined by its container, as every other program there.
//!
//! Key types: [`layout::Description`] (what an author fills in), [`layout::Packet`], [`outbox::Outbox`].
//!
//! 1. `inco_main` checks the descriptions and keeps them for the rest of the program.
//! 2. The runner works with them as with other functions: see the crates `inco-nf` and `functions`.
//! 3. In a burst, packets are handed over with pointers to their bytes; afterwards each is compared with its room.

// UNSAFETY: functions are called through pointers of C, and read and write packets through pointers.
#![expect(unsafe_code)]

mod function;
pub mod layout;
pub mod outbox;
mod registry;

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;

use functions::{Entry, LIBRARY};
use layout::Description;
use outbox::Outbox;

/// `inco_main` of the header.
///
/// # Safety
/// `argv` has `argc` strings, and `functions` as many pointers to descriptions as `count`; what a description points to
/// is as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inco_main(
    argc: c_int,
    argv: *const *const c_char,
    functions: *const *const Description,
    count: usize,
) -> c_int {
    // SAFETY: the caller says so.
    let (arguments, library) = unsafe { (arguments(argc, argv), library(functions, count)) };
    match library {
        Ok(library) => inco_nf::run(library, arguments).into(),
        Err(what) => {
            let _ = writeln!(std::io::stderr(), "inco_main: {what}");
            2
        }
    }
}

/// `inco_send` of the header.
///
/// # Safety
/// The outbox is the one of the call that is going on; the frame has as many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inco_send(outbox: *mut Outbox, frame: *const u8, bytes: usize, port: u8) -> bool {
    if outbox.is_null() || frame.is_null() {
        return false;
    }
    // SAFETY: the caller says so, and during a call nobody else uses the outbox.
    let (outbox, frame) = unsafe { (&mut *outbox, std::slice::from_raw_parts(frame, bytes)) };
    outbox.push(frame, port)
}

/// # Safety
/// There are so many strings.
unsafe fn arguments(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    let count = if argv.is_null() {
        0
    } else {
        usize::try_from(argc).unwrap_or(0)
    };
    let all = (0..count).map_while(|at| {
        // SAFETY: the caller says so.
        let word = unsafe { *argv.add(at) };
        // SAFETY: a word that is not null is a string.
        let word = (!word.is_null()).then(|| unsafe { CStr::from_ptr(word) })?;
        Some(OsStr::from_bytes(word.to_bytes()).to_owned())
    });
    all.collect()
}

/// The library of inco with these functions.
///
/// # Safety
/// There are so many descriptions, each as the header says.
unsafe fn library(functions: *const *const Description, count: usize) -> Result<&'static [Entry], String> {
    if functions.is_null() || !(1..=registry::FUNCTIONS_LIMIT).contains(&count) {
        return Err(format!("there are 1 to {} functions", registry::FUNCTIONS_LIMIT));
    }
    let mut checked: Vec<registry::Registered> = Vec::new();
    for at in 0..count {
        // SAFETY: the caller says so.
        let of = unsafe { (*functions.add(at)).as_ref() };
        let of = of.ok_or_else(|| format!("function {at} is NULL"))?;
        // SAFETY: the caller says so.
        let of = unsafe { registry::check(of) }?;
        let name = of.about.name;
        let of_library = LIBRARY.iter().map(|entry| entry.about().name);
        if of_library
            .chain(checked.iter().map(|of| of.about.name))
            .any(|other| other == name)
        {
            return Err(format!("{name}: there is a function of this name already"));
        }
        checked.push(of);
    }
    registry::keep(checked)?;
    let entries = LIBRARY.iter().chain(&function::ENTRIES[..count]);
    Ok(entries.copied().collect::<Vec<_>>().leak())
}
