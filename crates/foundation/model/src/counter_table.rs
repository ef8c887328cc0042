//! The tables of counters: what a switch counts of an instance, a service, an uplink and a worker.
//!
//! From the rows come the atomics of the soft switch, the readings and sums of the contract, the fields of
//! `/v1/counters`, the metrics of `/metrics`, and their references. A row is
//!
//! ```text
//! /// One line of text: the documentation everywhere, and the metric's help. A gauge's ends in "A gauge."
//! name: kind => api_field: type "metric", drop "reason";
//! ```
//! | part | meaning |
//! | --- | --- |
//! | kind | `counter` goes up, `nanoseconds` is time that goes up, `gauge` goes up and down |
//! | `=> api_field: type` | its field in `/v1/counters`: `u64`, or `f64` for nanoseconds that are shown as seconds |
//! | `"metric"` | its name in `/metrics`, without `inco_` and `_total` |
//! | `, drop "reason"` | the instance's `drops` have it under that reason |
//!
//! | group | who fills it |
//! | --- | --- |
//! | `workers` | drivers; in the soft switch each worker, so the order of the rows is that of a worker's memory |
//! | `others` | not a worker: the orchestrator, or a driver that reads a device |
//! | `of_instances` | sums over all instances that the service has had, of counters of [`slot_counters!`] |
//!
//! [`instance_signals!`] lists what autoscalers see of these counters.
//!
//! Each macro takes the name of a macro and tokens for it: `slot_counters! { show! { own tokens } }` is
//! `show! { { own tokens } workers { rows } others { rows } }`.
//!
//! [`slot_counters!`]: crate::slot_counters
//! [`instance_signals!`]: crate::instance_signals

/// What is counted of an instance. See the rows in `counter_table.rs`.
#[macro_export]
macro_rules! slot_counters {
    ($then:ident! { $($own:tt)* }) => { $then! {
        { $($own)* }
        workers {
            /// Packets put into the instance's ring.
            to_packets: counter => to_packets: u64 "instance_to_packets";
            /// Bytes put into the instance's ring.
            to_bytes: counter => to_bytes: u64 "instance_to_bytes";
            /// Packets returned from the instance.
            back_packets: counter => back_packets: u64 "instance_back_packets";
            /// Bytes returned from the instance.
            back_bytes: counter => back_bytes: u64 "instance_back_bytes";
            /// Packets dropped because the instance's ring was full.
            ring_drops: counter, drop "ring_full";
            /// Packets too large for the buffers of the instance's port.
            too_large: counter, drop "too_large";
            /// Packets in the instance's rings when it failed.
            lost: counter, drop "lost";
            /// Packets that the instance took and did not return, known when it shut down in order.
            kept: counter;
            /// Packets that the instance originated.
            originated: counter => originated_packets: u64 "instance_originated_packets";
            /// Returned packets that match no flow of the instance.
            return_unmatched: counter => return_unmatched_packets: u64 "instance_return_unmatched_packets";
            /// Replies through the edge: at a machine those that went into a tunnel, at an edge those that came out of one.
            replies: counter => reply_packets: u64 "instance_reply_packets";
            /// Flows given to the instance.
            new_flows: counter => new_flows: u64 "instance_new_flows";
            /// Flows given to the instance because theirs had failed, or left the plan before they ended.
            expected_moves: counter;
            /// Flows pinned to the instance. A gauge.
            live_flows: gauge => live_flows: u64 "instance_live_flows";
            /// Occupied descriptors of the ring towards the instance. A gauge.
            ring_used: gauge => ring_used: u64 "instance_ring_used_descriptors";
            /// Size of the ring towards the instance, in descriptors. A gauge.
            ring_slots: gauge => ring_slots: u64 "instance_ring_descriptors";
            /// Packets in the ring back from the instance. A gauge.
            back_used: gauge;
            /// Descriptors that the instance has consumed since it was attached.
            consumed: counter;
            /// Times that its ring was full, or a quarter full in two consecutive readings.
            hot: counter => hot: u64 "instance_hot";
            /// Packets that the instance's network took over: an instance that ends connections gives none back.
            delivered: counter;
            /// The instance's part of 256 of the next new flows, with the scheduler `weighted`, summed over workers. A gauge.
            weight: gauge => weight: u64 "instance_weight";
            /// Load given to the instance in the last period of the scheduler `weighted`: its metric times seconds. A gauge.
            period_load: gauge => period_load: u64 "instance_period_load";
            /// Packets of both directions that a faster path has taken. The other counters have them as well.
            fast_packets: counter => fast_packets: u64 "instance_fast_packets";
            /// Flows of the instance that have a rule of a faster path. A gauge.
            fast_rules: gauge => fast_rules: u64 "instance_fast_rules";
            /// Moves of its flows with their state that were cancelled at a limit.
            stayed_at_limit: counter;
            /// Such moves that a function refused.
            stayed_refused: counter;
            /// Such moves for whose messages there was no room.
            stayed_without_room: counter;
            /// Such moves that ended with an instance or with the flow.
            stayed_gone: counter;
        }
        others {
            /// Time in which the instance could not run: throttled by its quota, or waiting for a CPU.
            throttled_ns: nanoseconds => held_up_s: f64 "instance_held_up_seconds";
        }
    } };
}

/// What is counted of a service. See the rows in `counter_table.rs`.
#[macro_export]
macro_rules! service_counters {
    ($then:ident! { $($own:tt)* }) => { $then! {
        { $($own)* }
        workers {
            /// Packets of the service's flows, served or dropped.
            offered_packets: counter => offered_packets: u64 "service_offered_packets";
            /// Bytes of the service's flows, served or dropped.
            offered_bytes: counter => offered_bytes: u64 "service_offered_bytes";
            /// Packets dropped because no instance takes flows.
            unserved: counter => unserved_packets: u64;
            /// Packets sent by hash without a pin because the flow table was full.
            unpinned: counter => unpinned_packets: u64 "service_unpinned_packets";
            /// New flows that fitted no instance and went to the least loaded one.
            overcommitted: counter => overcommitted_flows: u64 "service_overcommitted_flows";
            /// TCP connections that had begun before their first packet here, of which nothing is known: picked by their hash.
            recovered: counter => recovered_flows: u64 "service_recovered_flows";
            /// SYN packets that were sent on without a pin because too many connections were half open.
            flooded: counter => flooded_packets: u64 "service_flooded_packets";
        }
        others {
            /// New flows that were picked by their hash because no pick of the scheduler was prepared.
            unprepared: counter => unprepared_flows: u64 "service_unprepared_flows";
        }
        of_instances {
            /// Packets returned from the service's instances.
            back_packets: counter => returned_packets: u64 "service_returned_packets";
            /// Bytes returned from the service's instances.
            back_bytes: counter => returned_bytes: u64 "service_returned_bytes";
            /// Replies of the service's instances through the edge: into a tunnel, or out of one.
            replies: counter => reply_packets: u64 "service_reply_packets";
            /// Packets dropped at full rings of the service's instances.
            ring_drops: counter => ring_full_packets: u64;
            /// New flows given to the service's instances.
            new_flows: counter => new_flows: u64 "service_new_flows";
            /// Flows given to another instance because theirs had failed.
            expected_moves: counter => expected_moves: u64 "service_expected_moves";
        }
    } };
}

/// What is counted of an uplink. See the rows in `counter_table.rs`.
#[macro_export]
macro_rules! uplink_counters {
    ($then:ident! { $($own:tt)* }) => { $then! {
        { $($own)* }
        workers {
            /// Packets received from the uplink.
            received_packets: counter => received_packets: u64 "uplink_received_packets";
            /// Bytes received from the uplink.
            received_bytes: counter => received_bytes: u64 "uplink_received_bytes";
            /// Packets sent to the uplink.
            sent_packets: counter => sent_packets: u64 "uplink_sent_packets";
            /// Bytes sent to the uplink.
            sent_bytes: counter => sent_bytes: u64 "uplink_sent_bytes";
            /// Packets to the uplink that were dropped.
            dropped: counter => dropped_packets: u64 "uplink_dropped_packets";
        }
        others {
            /// Packets that the device dropped before the switch received them.
            missed_packets: counter => missed_packets: u64 "uplink_missed_packets";
            /// Packets that the device accepted and could not transmit.
            failed_packets: counter => failed_packets: u64 "uplink_failed_packets";
        }
    } };
}

/// What is counted of a worker. See the rows in `counter_table.rs`.
#[macro_export]
macro_rules! worker_counters {
    ($then:ident! { $($own:tt)* }) => { $then! {
        { $($own)* }
        workers {
            /// The newest plan that the worker works by. A gauge.
            generation: gauge;
            /// Packets that the worker received from uplinks.
            received: counter => received_packets: u64 "worker_received_packets";
            /// Turns of the worker's loop.
            turns: counter => turns: u64 "worker_turns";
            /// Turns that moved a packet.
            busy_turns: counter;
            /// Time in which the worker did not sleep.
            awake_ns: nanoseconds => awake_s: f64 "worker_awake_seconds";
            /// Time in which the worker processed packets.
            busy_ns: nanoseconds => busy_s: f64 "worker_busy_seconds";
            /// The longest time between two turns without a sleep, since it was last asked for. A gauge.
            longest_gap_ns: gauge;
            /// Packets of no service that the worker passed to an uplink.
            passed: counter => passed_packets: u64 "worker_passed_packets";
            /// Packets that the worker handed off to other workers.
            handed_off: counter => handed_off_packets: u64 "worker_handed_off_packets";
            /// Packets that other workers handed off to the worker.
            taken_over: counter;
            /// Flows in the worker's table. A gauge.
            live_flows: gauge => live_flows: u64 "worker_flows";
            /// Flows that the worker's table can hold. A gauge.
            flow_limit: gauge => flow_limit: u64 "worker_flow_limit";
            /// Packets of flows for which the worker's flow table had no free entry.
            table_full: counter => table_full_packets: u64 "worker_table_full_packets";
            /// Moves of flows whose packets were held meanwhile, in services that allow it.
            held_moves: counter;
            /// Those of them that went on before all that they had sent was back: a limit was reached.
            early_moves: counter;
            /// Flows that moved with the state of their function.
            state_moves: counter => state_moves: u64 "worker_state_moves";
            /// Such moves that were cancelled because they took too long, or too many packets had to be held.
            state_moves_at_limit: counter => state_moves_at_limit: u64 "worker_state_moves_at_limit";
            /// Such moves that were cancelled because a function refused.
            state_moves_refused: counter => state_moves_refused: u64 "worker_state_moves_refused";
            /// Such moves that were cancelled because a ring or the memory of frames had no room for a message.
            state_moves_without_room: counter => state_moves_without_room: u64 "worker_state_moves_without_room";
            /// Such moves that ended with an instance or with the flow.
            state_moves_gone: counter => state_moves_gone: u64 "worker_state_moves_gone";
            /// Messages of instances about moves that nobody had asked for, or that came too late.
            state_messages_refused: counter => state_messages_refused: u64 "worker_state_messages_refused";
            /// Copies of flows' states that an instance was not told to drop, because too many had to be told.
            state_forgets_lost: counter => state_forgets_lost: u64 "worker_state_forgets_lost";
            /// Flows that have a rule of a faster path. A gauge.
            fast_rules: gauge => fast_rules: u64 "worker_fast_rules";
            /// Flows that got a rule of a faster path.
            promotions: counter => promotions: u64 "worker_promotions";
            /// Flows that lost it again.
            demotions: counter => demotions: u64 "worker_demotions";
            /// Packets of both directions that rules of a faster path have taken. The other counters have them as well.
            fast_packets: counter => fast_packets: u64 "worker_fast_packets";
            /// Packets that asked a machine behind a tunnel for a flow which another edge may have given to it.
            looks: counter => looks: u64 "worker_looks";
            /// Packets that a machine sent back because it does not know their flow: at the edge and at the machine.
            looks_returned: counter => looks_returned: u64 "worker_returned_looks";
            /// Fragments that wait for the first fragment. A gauge.
            fragments_waiting: gauge => fragments_waiting: u64 "worker_waiting_fragments";
            /// Events lost because the queue to the control plane was full.
            events_lost: counter => events_lost: u64 "worker_lost_events";
            /// Packets between stages: fragments and packets of moving flows, frames handed to this worker. A gauge.
            held: gauge;
        }
        others {
            /// Rules of a faster path at a time, at most. A gauge.
            fast_rules_limit: gauge => fast_rules_limit: u64 "worker_fast_rules_limit";
            /// How often a flow that was worth a rule of a faster path got none, for want of room or time.
            refused_promotions: counter => refused_promotions: u64 "worker_refused_promotions";
        }
    } };
}

/// What autoscalers see of an instance's counters as they are: `signal = counter`, a counter of
/// [`slot_counters!`](crate::slot_counters). What is computed of several is written out in the collector.
#[macro_export]
macro_rules! instance_signals {
    ($then:ident! { $($own:tt)* }) => { $then! {
        { $($own)* }
        // Counters, by their growth per second over the fast window.
        rates {
            /// Packets per second returned from it, fast window.
            returns_fast_pps = back_packets;
            /// New pins per second, fast window.
            new_flows_fast_per_s = new_flows;
        }
        // Gauges, as they stand.
        values {
            /// Flows pinned to it.
            live_flows = live_flows;
            /// Packets in its ring.
            ring_packets = ring_used;
        }
    } };
}
