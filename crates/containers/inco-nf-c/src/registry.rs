//! The functions of this program, as C has described them.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use functions::{About, Metric};

use crate::layout::{
    Compile, Create, Description, Due, Free, Number, Process, Reload, Summarise, Tick, VERSION, Values,
};

/// `INCO_FUNCTIONS_LIMIT`.
pub(crate) const FUNCTIONS_LIMIT: usize = 8;

/// A function that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    pub(crate) about: About,
    pub(crate) compile: Compile,
    pub(crate) free_configuration: Free,
    pub(crate) create: Create,
    pub(crate) reload: Reload,
    pub(crate) process: Process,
    pub(crate) destroy: Free,
    pub(crate) due: Option<Due>,
    pub(crate) tick: Option<Tick>,
    pub(crate) values: Option<Values>,
    pub(crate) summary: Option<Summarise>,
}

static FUNCTIONS: OnceLock<Vec<Registered>> = OnceLock::new();

/// The function with that number.
pub(crate) fn get(number: usize) -> Option<&'static Registered> {
    FUNCTIONS.get()?.get(number)
}

/// Keeps the functions for the rest of the program.
///
/// # Errors
/// There were some before.
pub(crate) fn keep(functions: Vec<Registered>) -> Result<(), &'static str> {
    FUNCTIONS.set(functions).map_err(|_| "inco_main was called twice")
}

/// A string of C that is never freed: it is copied, because nothing says for how long C keeps it.
///
/// # Safety
/// The pointer is null or one of a string that ends with a zero byte.
unsafe fn text(of: *const c_char) -> Option<&'static str> {
    if of.is_null() {
        return None;
    }
    // SAFETY: it is not null, and so a string, says the caller.
    let copy = unsafe { CStr::from_ptr(of) }.to_str().ok()?.to_owned();
    Some(copy.leak())
}

/// # Safety
/// The pointer is one of so many numbers with their strings.
unsafe fn numbers(first: *const Number, count: usize) -> Option<&'static [Metric]> {
    let numbers = (0..count).map(|at| {
        // SAFETY: there are so many, says the caller; the layout is that of the header.
        let of = unsafe { &*first.add(at) };
        // SAFETY: so do their strings.
        let (name, help) = unsafe { (text(of.name)?, text(of.help)?) };
        Some(if of.is_gauge {
            Metric::gauge(name, help)
        } else {
            Metric::counter(name, help)
        })
    });
    Some(numbers.collect::<Option<Vec<_>>>()?.leak())
}

/// Checks a description.
///
/// # Errors
/// What is wrong with it.
///
/// # Safety
/// Its pointers are null, or ones of what the header says.
pub(crate) unsafe fn check(of: &Description) -> Result<Registered, String> {
    if of.version != VERSION {
        return Err(format!(
            "version is {}: it was built with another inco_function.h than this library, which has {VERSION}",
            of.version
        ));
    }
    // SAFETY: the caller says so.
    let (name, help) = unsafe { (text(of.name), text(of.help)) };
    let name = name.ok_or("name is NULL, or not UTF-8")?;
    let wrong = |what: &str| format!("{name}: {what}");
    let of_list = |first: *const Number, count: usize| {
        if count > 0 && first.is_null() {
            return None;
        }
        // SAFETY: the caller says so.
        unsafe { numbers(first, count) }
    };
    let strings = "help, and those of reasons and metrics, must be strings";
    let about = About {
        name,
        help: help.ok_or_else(|| wrong(strings))?,
        reasons: of_list(of.reasons, of.reasons_count).ok_or_else(|| wrong(strings))?,
        metrics: of_list(of.metrics, of.metrics_count).ok_or_else(|| wrong(strings))?,
    };
    if let Some(mistake) = about.mistake() {
        return Err(wrong(mistake));
    }
    let missing =
        || wrong("compile, free_configuration, create, reload, process and destroy must not be NULL");
    Ok(Registered {
        about,
        compile: of.compile.ok_or_else(missing)?,
        free_configuration: of.free_configuration.ok_or_else(missing)?,
        create: of.create.ok_or_else(missing)?,
        reload: of.reload.ok_or_else(missing)?,
        process: of.process.ok_or_else(missing)?,
        destroy: of.destroy.ok_or_else(missing)?,
        due: of.due,
        tick: of.tick,
        values: of.values,
        summary: of.summary,
    })
}
