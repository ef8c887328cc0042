//! Keeps the process below its CPU quota, so that the kernel never throttles it for tens of milliseconds.

/// Length of a slice in ns. Regular pauses are not longer, so that a ring of 1024 slots absorbs 500 k packets/s
/// meanwhile. Each slice costs one wake-up, some 10 us.
pub(crate) const SLICE_NS: u64 = 2_000_000;
/// Share of the quota that the function uses. The rest covers what it cannot measure: wake-ups and exits from
/// the kernel.
const FRACTION: f64 = 0.95;
/// Longest pause, in slices. A host that withholds the CPU charges tens of milliseconds at once. The pacer then takes
/// several pauses with packets in between, because a switch would treat one long pause as a stall.
const PAUSE_SLICES: u64 = 8;
/// Minimum budget of a slice, in ns, so that a tiny quota still makes progress.
const BUDGET_MIN_NS: u64 = 5_000;

/// Decides when to pause, from the CPU time used. Unused time of a slice is lost: catching up would exceed
/// the quota. Overuse is charged to the next slices.
#[derive(Debug)]
pub(crate) struct Pacer {
    budget_ns: u64,
    slice_start: u64,
    cpu_at_start: u64,
    /// Overuse of earlier slices.
    debt_ns: u64,
    /// Whether the last pause was cut short: a burst comes before the next one.
    owes_burst: bool,
}

impl Pacer {
    /// A pacer for a quota of `cpus`, starting now.
    pub(crate) fn new(cpus: f64, now: u64, cpu: u64) -> Pacer {
        let mut pacer = Pacer {
            budget_ns: 0,
            slice_start: now,
            cpu_at_start: cpu,
            debt_ns: 0,
            owes_burst: false,
        };
        pacer.set_cpus(cpus);
        pacer
    }

    /// Changes the quota.
    pub(crate) fn set_cpus(&mut self, cpus: f64) {
        self.budget_ns = ((cpus * FRACTION * SLICE_NS as f64) as u64).max(BUDGET_MIN_NS);
    }

    /// The pause that is due, in ns; 0 for none. `now` and `cpu` are the clock and the CPU time used, in ns.
    pub(crate) fn pause(&mut self, now: u64, cpu: u64) -> u64 {
        let slices = now.saturating_sub(self.slice_start) / SLICE_NS;
        let used = cpu.saturating_sub(self.cpu_at_start) + self.debt_ns;
        if slices > 0 {
            self.debt_ns = used.saturating_sub(self.budget_ns.saturating_mul(slices));
            self.slice_start += slices * SLICE_NS;
            self.cpu_at_start = cpu;
        }
        let used = cpu.saturating_sub(self.cpu_at_start) + self.debt_ns;
        if used < self.budget_ns || std::mem::take(&mut self.owes_burst) {
            return 0;
        }
        // As many slices as needed to have budget again.
        let slices = used / self.budget_ns;
        self.owes_burst = slices > PAUSE_SLICES;
        let slices = slices.min(PAUSE_SLICES);
        self.slice_start + slices * SLICE_NS - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_greedy_function_stays_below_its_quota(cpus in 0.02f64..1.0, burst in 1_000u64..60_000, overhead in 0u64..20_000) {
            let (mut now, mut cpu) = (77, 5);
            let mut pacer = Pacer::new(cpus, now, cpu);
            let mut longest = 0;
            while now < 1_000_000_000 {
                now += burst;
                cpu += burst;
                let pause = pacer.pause(now, cpu);
                if pause > 0 {
                    now += pause;
                    longest = longest.max(pause);
                    // Wake-ups cost CPU time too.
                    now += overhead;
                    cpu += overhead;
                }
            }
            let share = cpu as f64 / now as f64;
            let slack = (burst + overhead) as f64 / 1e9 + 0.002;
            prop_assert!(share <= cpus * FRACTION + slack, "{share} of {cpus}");
            // It receives its share, as far as whole bursts allow.
            if burst + overhead < (cpus * SLICE_NS as f64 / 4.0) as u64 {
                prop_assert!(share >= cpus * FRACTION * 0.7, "only {share} of {cpus}");
                prop_assert!(longest <= SLICE_NS * 2, "{longest} ns");
            }
        }

        #[test]
        fn a_large_debt_is_paid_in_short_pauses(stolen in 1_000_000u64..100_000_000) {
            let mut pacer = Pacer::new(0.1, 0, 0);
            let (mut now, mut cpu, mut last_burst) = (stolen, stolen, stolen);
            while now < 4_000_000_000 {
                let pause = pacer.pause(now, cpu);
                now += pause;
                if pause == 0 {
                    now += 20_000;
                    cpu += 20_000;
                    last_burst = now;
                }
                prop_assert!(now - last_burst <= PAUSE_SLICES * SLICE_NS, "{} ns", now - last_burst);
            }
            let share = cpu as f64 / now as f64;
            prop_assert!(share <= 0.1, "{share}: the debt is paid");
        }

        #[test]
        fn unused_time_is_not_caught_up(idle in 1u64..1_000) {
            let mut pacer = Pacer::new(0.1, 0, 0);
            let now = idle * SLICE_NS;
            prop_assert_eq!(pacer.pause(now, 0), 0);
            prop_assert!(pacer.pause(now + 1, 190_000) > 0, "one slice's budget, however long it was idle");
        }
    }
}
