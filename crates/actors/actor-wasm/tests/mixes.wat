;; An actor whose state depends on all that it was sent, with whole numbers, floating-point numbers (also those that are
;; none), vectors, divisions and shifts: what processors could do differently. Its answer is 32 bytes of it.
(module
  (import "inco" "send" (func $send (param i32 i64 i32 i32 i32)))
  (import "inco" "crc32" (func $crc32 (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  (global $calls (export "calls") (mut i64) (i64.const 1))
  (func (export "inbox") (result i32) (i32.const 1024))
  (func (export "inbox_bytes") (result i32) (i32.const 1024))
  (func (export "exec") (param $kind i32) (param $outside i32) (param $from i64) (param $bytes i32) (result i32)
    (local $n i64) (local $f f64) (local $place i32)
    (local.set $n (i64.load (i32.const 1024)))
    (global.set $calls (i64.add (i64.mul (global.get $calls) (i64.const 6364136223846793005)) (local.get $n)))
    ;; Where to write: anywhere in the second page.
    (local.set $place (i32.add (i32.const 65536)
      (i32.and (i32.wrap_i64 (i64.shr_u (global.get $calls) (i64.const 40))) (i32.const 0xffe0))))
    (local.set $f (f64.div
      (f64.sqrt (f64.convert_i64_s (i64.sub (global.get $calls) (local.get $n))))
      (f64.convert_i64_s (i64.rem_s (global.get $calls) (i64.const 3)))))
    (f64.store (local.get $place) (f64.add (f64.load (local.get $place)) (local.get $f)))
    (i64.store offset=8 (local.get $place) (i64.rotl (global.get $calls) (local.get $n)))
    (i64.store offset=16 (local.get $place) (i64.trunc_sat_f64_s (local.get $f)))
    (i32.store offset=24 (local.get $place)
      (call $crc32 (i32.const 65536) (i32.const 65536)))
    (v128.store (i32.const 2048) (f32x4.div (v128.load (local.get $place)) (v128.load (i32.const 2048))))
    (f32.store offset=28 (local.get $place) (f32.demote_f64 (local.get $f)))
    (call $send (local.get $outside) (local.get $from) (i32.const 0) (local.get $place) (i32.const 32))
    (i32.const 0)))
