//! What an actor must not do, for tests and benches of what happens then.

// UNSAFETY: this is the offence.
#![expect(unsafe_code)]

/// Writes where nothing of this process may be: at an address of another one. The process ends with SIGSEGV.
pub fn write_to(address: u64) {
    let place: *mut u64 = std::ptr::without_provenance_mut(address as usize & !7);
    // SAFETY: it is not sound, on purpose. It is called in a process that ends by it; if something is mapped there after
    // all, only that process is affected.
    unsafe { place.write_volatile(0x5eed) }
}

/// Runs for ever.
pub fn run_for_ever() -> ! {
    loop {
        std::hint::spin_loop();
    }
}
