#[link(wasm_import_module = "inco")]
unsafe extern "C" {
    fn send(outside: i32, to: i64, kind: i32, at: *const u8, bytes: usize);
}
static mut INBOX: [u8; 2048] = [0; 2048];
static mut COUNT: u64 = 0;

#[unsafe(no_mangle)]
extern "C" fn inbox() -> *const u8 {
    &raw const INBOX as *const u8
}
#[unsafe(no_mangle)]
extern "C" fn inbox_bytes() -> usize {
    2048
}
#[unsafe(no_mangle)]
extern "C" fn exec(kind: i32, outside: i32, from: i64, bytes: usize) -> i32 {
    // SAFETY: nothing else runs in this module.
    unsafe {
        COUNT += 1;
        let mut answer = std::slice::from_raw_parts(inbox(), bytes.min(2048)).to_vec();
        answer.extend(COUNT.to_le_bytes());
        send(outside, from, kind, answer.as_ptr(), answer.len());
    }
    0
}
