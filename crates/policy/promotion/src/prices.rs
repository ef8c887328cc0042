//! What a packet costs on each path, in nanoseconds of CPU time of the whole machine.

use path_costs::{Cost, Costs, Scope, Work};

/// Bytes of a frame of the work `packets` of `inco bench paths`.
pub const SMALL_BYTES: f64 = 64.0;
/// Bytes of a frame of bulk data.
pub const LARGE_BYTES: f64 = 1514.0;
/// Bits of data of such a frame, with the options that Linux uses.
const LARGE_DATA_BITS: f64 = 1448.0 * 8.0;

/// How many kinds of flows there are.
pub const KINDS: usize = 4;

/// The kind of a flow, as far as costs depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Where the flow's two ends are.
    pub scope: Scope,
    /// Whether its instance encrypts or decrypts its packets.
    pub is_encrypted: bool,
}

impl Kind {
    /// All of them, in the order of [`Kind::index`].
    pub const ALL: [Kind; KINDS] = [
        Kind::new(Scope::Local, false),
        Kind::new(Scope::Across, false),
        Kind::new(Scope::Local, true),
        Kind::new(Scope::Across, true),
    ];

    /// Of a scope.
    #[must_use]
    pub const fn new(scope: Scope, is_encrypted: bool) -> Kind {
        Kind { scope, is_encrypted }
    }

    /// Its number, below [`KINDS`].
    #[must_use]
    pub const fn index(self) -> usize {
        (matches!(self.scope, Scope::Across) as usize) | (self.is_encrypted as usize) << 1
    }
}

/// What a frame costs by its length: a straight line between two lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    /// Of [`SMALL_BYTES`], in nanoseconds.
    pub small_ns: f64,
    /// Of [`LARGE_BYTES`], in nanoseconds.
    pub large_ns: f64,
}

impl Curve {
    /// Of one frame of so many bytes, in nanoseconds. A longer frame than [`LARGE_BYTES`] counts as the frames that it is
    /// divided into.
    #[must_use]
    pub fn frame_ns(self, bytes: f64) -> f64 {
        if bytes > LARGE_BYTES {
            return self.large_ns * bytes / LARGE_BYTES;
        }
        let at = ((bytes - SMALL_BYTES) / (LARGE_BYTES - SMALL_BYTES)).clamp(0.0, 1.0);
        self.small_ns + (self.large_ns - self.small_ns) * at
    }

    /// Of so many frames with so many bytes together, in nanoseconds.
    #[must_use]
    pub fn ns(self, packets: u64, bytes: u64) -> f64 {
        match packets {
            0 => 0.0,
            _ => packets as f64 * self.frame_ns(bytes as f64 / packets as f64),
        }
    }
}

/// The two paths of a kind of flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paths {
    /// In software.
    pub slow: Curve,
    /// By a rule; [`None`] where no rule can do it.
    pub fast: Option<Curve>,
}

impl Paths {
    /// CPU time that the fast path saves for so many frames, in nanoseconds; below 0 where it is the dearer one, and 0
    /// where there is none.
    #[must_use]
    pub fn saved_ns(&self, packets: u64, bytes: u64) -> f64 {
        let fast = self.fast.map(|fast| fast.ns(packets, bytes));
        fast.map_or(0.0, |fast| self.slow.ns(packets, bytes) - fast)
    }
}

/// What everything costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// By [`Kind::index`].
    pub paths: [Paths; KINDS],
    /// CPU time to write a rule and to remove it, in nanoseconds.
    pub rule_ns: f64,
}

impl Default for Prices {
    /// Medians of `inco bench paths` on a virtual machine with two CPUs (docs/paths.md): `soft-kernel` against `ebpf`, and
    /// `esp` for what is encrypted, for which `ebpf` has no path. A rule: 10 µs.
    fn default() -> Prices {
        let curve = |small_us: f64, s_per_gbit: f64| Curve {
            small_ns: small_us * 1000.0,
            large_ns: s_per_gbit * LARGE_DATA_BITS,
        };
        let plain = |slow, fast| Paths {
            slow,
            fast: Some(fast),
        };
        // ESP of large frames was not measured: its bytes are encrypted at some 1.5 GB/s.
        let encrypted = Paths {
            slow: Curve {
                small_ns: 1000.0,
                large_ns: 2000.0,
            },
            fast: None,
        };
        Prices {
            paths: [
                plain(curve(4.0, 0.62), curve(1.9, 0.09)),
                plain(curve(4.1, 0.85), curve(2.5, 0.10)),
                encrypted,
                encrypted,
            ],
            rule_ns: 10_000.0,
        }
    }
}

impl Prices {
    /// These, with what a file says of the two paths of flows that are not encrypted: the rows with the most streams. Names
    /// are those of `inco bench paths`, such as `soft-kernel` and `ebpf`. Gives also what the file lacks, in words.
    #[must_use]
    pub fn measured(mut self, costs: &Costs, slow: &str, fast: &str) -> (Prices, Vec<String>) {
        let mut lacking = Vec::new();
        for scope in [Scope::Local, Scope::Across] {
            let Some(paths) = self.paths.get_mut(Kind::new(scope, false).index()) else {
                continue;
            };
            let mut read = |path: &str, curve: &mut Curve| {
                let mut figure = |work, what: &str, of: fn(&Cost) -> Option<f64>| {
                    let rows = costs.costs.iter();
                    let rows = rows.filter(|row| row.path == path && row.scope == scope && row.work == work);
                    let found = rows
                        .filter_map(|row| Some((row.streams, of(row)?)))
                        .max_by_key(|of| of.0);
                    if found.is_none() {
                        let scope = match scope {
                            Scope::Local => "local",
                            Scope::Across => "across",
                        };
                        lacking.push(format!("{what} of the path {path:?}, scope {scope:?}"));
                    }
                    found.map(|of| of.1)
                };
                let packet_ns = |row: &Cost| row.cpu_ns_per_packet.map(|figure| figure.median);
                if let Some(ns) = figure(Work::Packets, "cpu_ns_per_packet", packet_ns) {
                    curve.small_ns = ns;
                }
                let gbit_s = |row: &Cost| row.cpu_s_per_gbit.map(|figure| figure.median);
                if let Some(seconds) = figure(Work::Tcp, "cpu_s_per_gbit", gbit_s) {
                    curve.large_ns = seconds * LARGE_DATA_BITS;
                }
            };
            read(slow, &mut paths.slow);
            if let Some(fast_curve) = &mut paths.fast {
                read(fast, fast_curve);
            }
        }
        (self, lacking)
    }

    /// The two paths of a kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> &Paths {
        // Its number is below KINDS.
        self.paths.get(kind.index()).unwrap_or(&self.paths[0])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_numbers_of_their_own() {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), at);
        }
    }

    #[test]
    fn a_frame_costs_by_its_length() {
        let curve = Curve {
            small_ns: 100.0,
            large_ns: 300.0,
        };
        assert_eq!(curve.frame_ns(1.0), 100.0);
        assert_eq!(curve.frame_ns(SMALL_BYTES), 100.0);
        assert_eq!(curve.frame_ns(789.0), 200.0);
        assert_eq!(curve.frame_ns(LARGE_BYTES), 300.0);
        assert_eq!(curve.ns(0, 0), 0.0);
        // A segment of ten frames costs as much as these.
        assert_eq!(curve.ns(1, 15_140), curve.ns(10, 15_140));
    }

    #[test]
    fn what_was_measured_replaces_the_defaults() {
        let text = "version = 1\ncpus = 2\nkernel = \"6\"\n[[cost]]\npath = \"ebpf\"\nscope = \"local\"\nwork = \
                    \"packets\"\nstreams = 16\ncpu_ns_per_packet = { median = 7.0, low = 6.0, high = 8.0 }\n[[cost]]\n\
                    path = \"soft-kernel\"\nscope = \"across\"\nwork = \"tcp\"\nstreams = 1\ncpu_s_per_gbit = { median \
                    = 9.0, low = 9.0, high = 9.0 }\n[[cost]]\npath = \"soft-kernel\"\nscope = \"across\"\nwork = \
                    \"tcp\"\nstreams = 4\ncpu_s_per_gbit = { median = 0.5, low = 0.5, high = 0.5 }\n";
        let costs = Costs::parse(text).unwrap();
        let (prices, lacking) = Prices::default().measured(&costs, "soft-kernel", "ebpf");
        let local = prices.of(Kind::ALL[0]);
        assert_eq!(local.fast.unwrap().small_ns, 7.0);
        assert_eq!(local.slow, Prices::default().of(Kind::ALL[0]).slow);
        assert_eq!(prices.of(Kind::ALL[1]).slow.large_ns, 0.5 * 11_584.0);
        assert_eq!(prices.of(Kind::ALL[2]), Prices::default().of(Kind::ALL[2]));
        assert_eq!(lacking.len(), 6);
        assert!(lacking.contains(&"cpu_s_per_gbit of the path \"ebpf\", scope \"across\"".to_owned()));
    }
}
