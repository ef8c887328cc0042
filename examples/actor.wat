;; An actor in WebAssembly: it answers each message with its body and the number of messages so far, 8 bytes, the lowest
;; first. The number is in memory, so it moves with the actor. docs/tasks/own-actor.md.
(module
  (import "inco" "send" (func $send (param $outside i32) (param $to i64) (param $kind i32) (param $at i32) (param $bytes i32)))
  (memory (export "memory") 1)
  ;; Bodies are put here: up to 2,048 bytes.
  (func (export "inbox") (result i32) (i32.const 1024))
  (func (export "inbox_bytes") (result i32) (i32.const 2048))
  (func (export "exec") (param $kind i32) (param $outside i32) (param $from i64) (param $bytes i32) (result i32)
    ;; Of a longer body only the beginning is there.
    (if (i32.gt_u (local.get $bytes) (i32.const 2048)) (then (local.set $bytes (i32.const 2048))))
    (i64.store (i32.const 0) (i64.add (i64.load (i32.const 0)) (i64.const 1)))
    (i64.store (i32.add (i32.const 1024) (local.get $bytes)) (i64.load (i32.const 0)))
    (call $send (local.get $outside) (local.get $from) (local.get $kind)
      (i32.const 1024) (i32.add (local.get $bytes) (i32.const 8)))
    ;; The message has ended.
    (i32.const 0)))
