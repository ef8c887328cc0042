//! The flow tables of an earlier run: attached by their workers, or converted where this run has other ones.

use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use flow_table::{FlowHasher, FlowTable, Identity, Line, Numbers, Parallel};
use model::{ServiceId, Slot};
use switch::SwitchError;

use super::resume::{Found, Leftover};
use super::start::keep_table;
use super::{SoftSwitchConfig, system};
use crate::keep::Keep;
use crate::numbering;
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
        let ours = keep.numbering.tables;
        let has = |of: u64| {
            tables
                .iter()
                .any(|table| table.found.identity.configuration == of)
        };
        // A run that ended while it replaced the tables of the one before leaves both. Its own have its numbers.
        let before = self.numbering.take();
        let before = before.filter(|before| has(before.tables) && (before.tables == ours || !has(ours)));
        let numbers = before.as_ref().map(|before| before.in_run(&keep.numbering));
        let configuration = before.map_or(ours, |before| before.tables);
        let (usable, others): (Vec<_>, Vec<_>) = tables.into_iter().partition(|table| {
            let of = &table.found.identity;
            (of.boot, of.configuration) == (keep.boot, configuration)
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
        let are_same = numbers.as_deref().is_none_or(numbering::are_same);
        self.shares_of = are_same.then_some(configuration);
        if are_same && usable.iter().all(fits) {
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
        } else if let Err(error) = self.convert(
            &usable,
            numbers.as_deref(),
            hasher.owning(config.ownership),
            config,
            keep,
        ) {
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

    /// Makes new tables with the flows of these, whose services have these numbers now, or the same. They are kept in
    /// place of these once this run has started.
    fn convert(
        &mut self,
        tables: &[KeptTable],
        numbers: Option<&[Option<ServiceId>]>,
        hasher: FlowHasher,
        config: &SoftSwitchConfig,
        keep: &Keep,
    ) -> Result<(), SwitchError> {
        let sources: Vec<&[Line]> = tables.iter().map(|table| &*table.storage).collect();
        let lines = config.table.lines_needed().map_err(SwitchError::Table)?;
        let service = |of: ServiceId| match numbers {
            Some(numbers) => numbers.get(of.index()).copied().flatten(),
            None => Some(of),
        };
        let numbers = Numbers {
            service: &service,
            ..Numbers::SAME
        };
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
                &numbers,
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
        configuration: keep.numbering.tables,
        worker: worker as u16,
        workers: config.workers.len() as u16,
    }
}

/// The name of a worker's table.
pub(super) fn name_of(worker: usize) -> String {
    format!("table/{worker}")
}

#[cfg(test)]
mod tests;
