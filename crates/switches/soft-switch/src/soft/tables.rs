//! The flow tables of an earlier run: attached by their workers, or converted where this run has other ones.

use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use flow_table::{FlowHasher, FlowTable, Identity, Line, Numbers, Parallel};
use model::Slot;
use switch::SwitchError;

use super::resume::{Found, Leftover};
use super::start::keep_table;
use super::{SoftSwitchConfig, system};
use crate::keep::Keep;
use crate::table_memory::TableMemory;

/// A flow table of an earlier run, until all are known.
struct KeptTable {
    name: String,
    storage: TableMemory,
    found: flow_table::Found,
}

impl KeptTable {
    /// A table of any size, of a layout that this release can read.
    fn of(mut entry: Found) -> Result<KeptTable, String> {
        let name = std::mem::take(&mut entry.name);
        let storage = TableMemory::open(&entry.one_file()?).map_err(|error| error.to_string())?;
        let found = flow_table::inspect(&storage).map_err(|error| error.to_string())?;
        Ok(KeptTable { name, storage, found })
    }
}

impl Leftover {
    /// Takes the flow tables over: each by its worker if all are as this run would make them, else all are converted.
    pub(super) fn put_tables(&mut self, entries: Vec<Found>, config: &SoftSwitchConfig, keep: &Keep) {
        let mut tables = Vec::new();
        let threads = Threads::per_table(entries.len());
        for (name, table) in threads.each(entries, |entry| (entry.name.clone(), KeptTable::of(entry))) {
            match table {
                Ok(table) => tables.push(table),
                Err(reason) => self.reject(&name, &reason, keep),
            }
        }
        let (usable, others): (Vec<_>, Vec<_>) = tables.into_iter().partition(|table| {
            let of = &table.found.identity;
            (of.boot, of.configuration) == (keep.boot, keep.services)
        });
        for table in others {
            let reason = "it is of another boot of this machine, or of other services";
            self.reject(&table.name, reason, keep);
        }
        let Some(hasher) = usable.first().map(|table| table.found.hasher) else {
            return;
        };
        let fits = |table: &KeptTable| {
            let (found, worker) = (&table.found, usize::from(table.found.identity.worker));
            found.config == config.table
                && found.identity == identity(config, keep, worker)
                && table.name == name_of(worker)
                && (found.hasher.key(), found.hasher.ownership()) == (hasher.key(), config.ownership)
        };
        if usable.iter().all(fits) {
            let attached = threads.each(usable, |KeptTable { name, storage, found }| {
                let (of, now) = (&found.identity, clock::monotonic());
                let table = FlowTable::attach(storage, of, &config.timeouts, now, &threads);
                (name, usize::from(of.worker), table)
            });
            for (name, worker, table) in attached {
                match table {
                    Ok(table) => self.put_table(worker, table),
                    Err(error) => self.reject(&name, &error.to_string(), keep),
                }
            }
        } else if let Err(error) = self.convert(&usable, hasher.owning(config.ownership), config, keep) {
            for table in &usable {
                self.reject(&table.name, &error.to_string(), keep);
            }
            return;
        }
        self.hasher = Some(hasher.owning(config.ownership));
    }

    fn put_table(&mut self, worker: usize, table: FlowTable<TableMemory>) {
        self.resumed.flows += *table.attach_counts();
        for (slot, live) in (0..).map(Slot).zip(table.live_all()) {
            if *live > 0 {
                *self.resumed.live.entry(slot).or_default() += u64::from(*live);
            }
        }
        if let Some(share) = self.workers.get_mut(worker) {
            share.table = Some(table);
        }
    }

    /// Makes new tables with the flows of these. They are kept in place of these once this run has started.
    fn convert(
        &mut self,
        tables: &[KeptTable],
        hasher: FlowHasher,
        config: &SoftSwitchConfig,
        keep: &Keep,
    ) -> Result<(), SwitchError> {
        let sources: Vec<&[Line]> = tables.iter().map(|table| &*table.storage).collect();
        let lines = config.table.lines_needed().map_err(SwitchError::Table)?;
        let make = |worker| {
            let (file, storage) = TableMemory::in_file(lines, keep.hugepages)
                .map_err(|e| system("memory for a flow table", e))?;
            let table = FlowTable::convert(
                storage,
                &config.table,
                &config.timeouts,
                hasher,
                &identity(config, keep, worker),
                clock::monotonic(),
                &sources,
                &Numbers::SAME,
                &Threads::per_table(1),
            );
            Ok((file, table.map_err(SwitchError::Table)?))
        };
        let made = (0..config.workers.len()).map(make);
        let made: Vec<(OwnedFd, FlowTable<TableMemory>)> = made.collect::<Result<_, SwitchError>>()?;
        for table in tables {
            keep.forget(&table.name);
        }
        for (worker, (file, table)) in made.into_iter().enumerate() {
            keep_table(keep, worker, config.workers.len(), &file);
            self.put_table(worker, table);
        }
        self.resumed.converted = tables.len();
        tracing::info!(
            tables = tables.len(),
            "the flow tables of an earlier run were converted"
        );
        Ok(())
    }
}

/// Threads for each of several tables, or for parts of one: packets wait meanwhile, and the CPUs have nothing else to
/// do.
struct Threads(usize);

impl Threads {
    /// As many for each of so many tables as there are CPUs for it.
    fn per_table(tables: usize) -> Threads {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        Threads((cpus / tables.max(1)).max(1))
    }
}

impl Parallel for Threads {
    fn parts(&self) -> usize {
        self.0
    }

    fn each<T: Send, R: Send>(&self, parts: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        if parts.len() < 2 {
            return parts.into_iter().map(work).collect();
        }
        let parts: Vec<_> = parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
        // Each part is taken once: by its thread, or here where the system has no more threads.
        let run = |part: &Mutex<Option<T>>| part.lock().ok().and_then(|mut part| part.take()).map(&work);
        let run = &run;
        std::thread::scope(|scope| {
            let start = |part| {
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || run(part))
                    .ok()
            };
            let threads: Vec<_> = parts.iter().map(|part| (part, start(part))).collect();
            let results = threads.into_iter().map(|(part, thread)| match thread {
                Some(thread) => thread.join(),
                None => Ok(run(part)),
            });
            results
                .filter_map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }
}

/// Whose table a worker's is.
pub(super) fn identity(config: &SoftSwitchConfig, keep: &Keep, worker: usize) -> Identity {
    Identity {
        boot: keep.boot,
        configuration: keep.services,
        worker: worker as u16,
        workers: config.workers.len() as u16,
    }
}

/// The name of a worker's table.
pub(super) fn name_of(worker: usize) -> String {
    format!("table/{worker}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::AsFd as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use flow_table::{Ownership, TableConfig};
    use keeper::{Keeper, Order, Server};
    use model::{Direction, FlowKey, FlowKeyV4, Polling, ServiceId, Timeouts, protocol};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::Signal;
    use switch::Resumed;

    use super::*;
    use crate::frame::{FrameMemory, HeapFrame, HeapMemory};
    use crate::keep::WorkerNote;
    use crate::soft::{SoftSwitch, UplinkConfig, UplinkDevice};

    const BOOT: [u8; 16] = [5; 16];
    const SERVICES: u64 = 77;
    const FLOWS: u16 = 3_000;
    const KEY: [u64; 4] = [1, 2, 3, 4];
    /// The run directory of a process of a test, in its environment.
    const RUN_DIR: &str = "INCO_TEST_RUN_DIR";

    /// A keeper's server in a thread.
    struct Kept {
        directory: tempfile::TempDir,
        stop: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Kept {
        fn start() -> Kept {
            let directory = tempfile::tempdir().unwrap();
            let mut server = Server::bind(directory.path()).unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let is_over = Arc::clone(&stop);
            let thread = std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) && server.serve() == Order::None {
                    let files = server.files();
                    let mut fds: Vec<_> = files
                        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                        .collect();
                    let step = Duration::from_millis(5).try_into().unwrap();
                    poll(&mut fds, Some(&step)).unwrap();
                }
            });
            Kept {
                directory,
                stop,
                thread: Some(thread),
            }
        }

        /// What a run of these services has.
        fn run(&self, services: u64) -> Keep {
            let keeper = Keeper::connect(self.directory.path()).unwrap().unwrap();
            Keep::new(Arc::new(keeper), services, BOOT)
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            self.thread.take().unwrap().join().unwrap();
        }
    }

    fn config(workers: usize, flows: usize, keep: &Keep) -> SoftSwitchConfig {
        SoftSwitchConfig {
            fast: None,
            tunnel: None,
            half_open: None,
            kernel_ports: super::super::KernelPorts::default(),
            workers: vec![None; workers],
            polling: Polling::default(),
            table: TableConfig {
                ipv4_flows: flows,
                ipv6_flows: 100,
                return_counters: false,
                pin_times: false,
            },
            timeouts: Timeouts::default(),
            uplinks: vec![UplinkConfig {
                name: "null".to_owned(),
                device: UplinkDevice::Null,
                max_frame: 1518,
                waits: false,
            }],
            hash_key: [9; 4],
            ownership: Ownership::Keyed,
            keep: Some(keep.clone()),
        }
    }

    fn key(flow: u16) -> FlowKey {
        let [high, low] = flow.to_be_bytes();
        FlowKey::V4(FlowKeyV4 {
            a: [10, 0, high, low],
            b: [203, 0, 113, 1],
            a_port: flow,
            b_port: 53,
            vlan: 0,
            protocol: protocol::UDP,
            zero: 0,
        })
    }

    fn slot_of(flow: u16) -> Slot {
        Slot(flow % 7)
    }

    /// A run that leaves a table for each of so many workers.
    fn leave_tables(kept: &Kept, workers: usize) {
        let keep = kept.run(SERVICES);
        let of = config(workers, 4_000, &keep);
        let hasher = FlowHasher::new(KEY);
        for worker in 0..workers {
            let lines = of.table.lines_needed().unwrap();
            let (file, storage) = TableMemory::in_file(lines, false).unwrap();
            let (identity, now) = (identity(&of, &keep, worker), clock::monotonic());
            let table = FlowTable::new(storage, &of.table, &of.timeouts, hasher, &identity, now);
            let mut table = table.unwrap();
            for flow in (0..FLOWS).filter(|flow| hasher.owner(&key(*flow), workers) == worker) {
                let (key, pins) = (key(flow), [slot_of(flow); 2]);
                let hash = hasher.hash(&key);
                table
                    .insert(&key, hash, Direction::Forward, pins, ServiceId(0), now)
                    .unwrap();
            }
            keep.keep(&name_of(worker), &WorkerNote { workers }, &[file.as_fd()]);
        }
        keep.begin();
    }

    fn resume(kept: &Kept, workers: usize, flows: usize, services: u64) -> Leftover {
        let keep = kept.run(services);
        let leftover = Leftover::take(&config(workers, flows, &keep)).unwrap();
        keep.begin();
        // The answer comes after all that was forgotten.
        keep.keeper().entries().unwrap();
        leftover
    }

    fn assert_all_pinned(leftover: &Leftover, converted: usize) {
        let Resumed {
            flows,
            live,
            rejected,
            converted: found,
            ..
        } = &leftover.resumed;
        assert_eq!(
            (flows.flows, flows.rejected_entries()),
            (FLOWS.into(), 0),
            "{flows:?}"
        );
        assert_eq!((rejected.as_slice(), *found), (&[][..], converted));
        assert_eq!(live.values().sum::<u64>(), u64::from(FLOWS));
        let hasher = leftover.hasher.unwrap();
        assert_eq!(hasher.key(), KEY);
        for flow in 0..FLOWS {
            let (key, workers) = (key(flow), leftover.workers.len());
            let share = &leftover.workers[hasher.owner(&key, workers)];
            let table = share.table.as_ref().unwrap();
            let row = table.get(&key, clock::monotonic()).unwrap();
            assert_eq!(row.pins, [slot_of(flow); 2]);
        }
    }

    #[test]
    fn tables_of_other_sizes_and_numbers_of_workers_are_converted_and_no_flow_moves() {
        let kept = Kept::start();
        leave_tables(&kept, 2);
        // As they are, of another size, for fewer workers, and for more: each run has what the one before left.
        for (workers, flows, converted) in [
            (2, 4_000, 0),
            (2, 8_000, 2),
            (1, 8_000, 2),
            (3, 5_000, 1),
            (3, 5_000, 0),
        ] {
            assert_all_pinned(&resume(&kept, workers, flows, SERVICES), converted);
            assert_eq!(kept.run(SERVICES).keeper().entries().unwrap(), workers);
        }
    }

    #[test]
    fn a_run_that_does_not_start_leaves_the_tables_as_they_were() {
        let kept = Kept::start();
        leave_tables(&kept, 1);
        let keep = kept.run(SERVICES);
        assert_all_pinned(&Leftover::take(&config(2, 6_000, &keep)).unwrap(), 1);
        drop(keep);
        assert_all_pinned(&resume(&kept, 1, 4_000, SERVICES), 0);
    }

    /// Memory whose worker panics.
    struct Panics;

    impl FrameMemory for Panics {
        type Frame = HeapFrame;
        type Device = <HeapMemory as FrameMemory>::Device;
        type Registration = ();

        fn register_thread() {
            panic!("the worker of this test panics");
        }

        fn take(&mut self) -> Option<HeapFrame> {
            None
        }

        fn give(&mut self, _frame: HeapFrame) {}

        fn frame_limit(&self) -> usize {
            1522
        }
    }

    /// The process whose worker panics. Run alone, it does nothing.
    #[test]
    fn the_run_whose_worker_panics() {
        let Some(run_dir) = std::env::var_os(RUN_DIR) else {
            return;
        };
        let keeper = Keeper::connect(run_dir.as_ref()).unwrap().unwrap();
        let keep = Keep::new(Arc::new(keeper), SERVICES, BOOT);
        let _switch = SoftSwitch::start(&config(1, 4_000, &keep), vec![Panics], Vec::new()).unwrap();
        keep.begin();
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_worker_that_panics_ends_the_process_and_the_next_run_has_all_flows() {
        let kept = Kept::start();
        leave_tables(&kept, 1);
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "soft::tables::tests::the_run_whose_worker_panics"])
            .env(RUN_DIR, kept.directory.path())
            .output()
            .unwrap();
        assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()), "{ended:?}");
        assert_all_pinned(&resume(&kept, 1, 4_000, SERVICES), 0);
    }

    #[test]
    fn tables_of_other_services_and_of_unknown_layouts_are_rejected() {
        let kept = Kept::start();
        leave_tables(&kept, 2);
        let keep = kept.run(SERVICES);
        let (file, _memory) = TableMemory::in_file(100, false).unwrap();
        keep.keep(&name_of(1), &WorkerNote { workers: 2 }, &[file.as_fd()]);
        keep.begin();
        let leftover = resume(&kept, 2, 4_000, SERVICES + 1);
        let rejected = &leftover.resumed.rejected;
        assert!(leftover.workers.iter().all(|share| share.table.is_none()));
        assert_eq!(leftover.resumed.live, BTreeMap::new());
        assert_eq!(rejected.len(), 2, "{rejected:?}");
        assert!(
            rejected
                .iter()
                .any(|of| of == "table/1: the storage holds no flow table")
        );
        assert!(rejected.iter().any(|of| of.contains("of other services")));
        assert_eq!(kept.run(SERVICES).keeper().entries().unwrap(), 0);
    }
}
