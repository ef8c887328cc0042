//! What operators set at run time: counts, ranges, quotas, policies, and what is paused. The launcher keeps it for the
//! next run, so that it holds after a crash and an upgrade as before. A stop removes it: then the file applies again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result};
use keeper::Keeper;
use model::Action;
use rustix::fs::{MemfdFlags, memfd_create};

/// The name under which the launcher keeps it.
const NAME: &str = "inco/settings";
/// How much of it a run reads, in bytes: a setting has some hundred.
const BYTES_MAX: u64 = 1 << 20;

/// What an action sets. A later action on the same replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    Count,
    Range,
    Quota,
    Scheduler,
    Autoscaler,
    PauseIn,
    PauseOut,
    DryRun,
}

/// The settings that differ from the file, as the actions that made them.
#[derive(Debug, Default)]
pub(super) struct RunTime {
    actions: BTreeMap<(String, Setting), Action>,
}

/// What the action sets of which service, and whether it differs from the file then. [`None`] for an action that sets
/// nothing which holds from then on.
fn set_by(action: &Action) -> Option<(&str, Setting, bool)> {
    Some(match action {
        Action::Scale { service, instances } => (service, Setting::Count, instances.is_some()),
        Action::Range { service, min, max } => (service, Setting::Range, min.is_some() || max.is_some()),
        Action::Resize { service, cpus } => (service, Setting::Quota, cpus.is_some()),
        Action::Policy {
            service,
            scheduler: Some(_),
            ..
        } => (service, Setting::Scheduler, true),
        Action::Policy { service, .. } => (service, Setting::Autoscaler, true),
        Action::PauseIn { service, on } => (service, Setting::PauseIn, *on),
        Action::PauseOut { service, on } => (service, Setting::PauseOut, *on),
        Action::DryRun { service, on } => (service, Setting::DryRun, *on),
        _ => return None,
    })
}

impl RunTime {
    /// What the run before had, which is set again now. So a run that ends before that is done loses none of it.
    pub(super) fn again(&mut self, actions: &[Action]) {
        for action in actions {
            self.note(action);
        }
    }

    /// What was to be set again is refused, as for a service that is no more. Whether a setting has ended by it: else a
    /// later run would set it, when there may be such a service again.
    pub(super) fn refused_again(&mut self, action: &Action) -> bool {
        let key = set_by(action).map(|(service, setting, _)| (service.to_owned(), setting));
        key.is_some_and(|key| self.actions.remove(&key).is_some())
    }

    /// An action was carried out. Whether a setting has changed by it.
    pub(super) fn note(&mut self, action: &Action) -> bool {
        let Some((service, setting, differs)) = set_by(action) else {
            return false;
        };
        let key = (service.to_owned(), setting);
        if !differs {
            return self.actions.remove(&key).is_some();
        }
        self.actions.insert(key, action.clone()).as_ref() != Some(action)
    }

    /// The file has another policy for the service now, which applies from now on. Whether a setting has ended by it.
    pub(super) fn file_sets(&mut self, service: &str, scheduler: bool, autoscaler: bool) -> bool {
        let set = [(Setting::Scheduler, scheduler), (Setting::Autoscaler, autoscaler)];
        let mut ended = false;
        for (setting, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            ended |= self.actions.remove(&(service.to_owned(), setting)).is_some();
        }
        ended
    }

    /// Has the launcher keep it for the next run.
    pub(super) fn keep(&self, keeper: &Keeper) {
        if self.actions.is_empty() {
            keeper.forget(NAME);
        } else if let Err(error) = self.give(keeper) {
            tracing::warn!(
                error = format!("{error:#}"),
                "what is set now by hand is forgotten if inco ends by a crash"
            );
        }
    }

    fn give(&self, keeper: &Keeper) -> Result<()> {
        let actions: Vec<&Action> = self.actions.values().collect();
        let mut file = File::from(memfd_create("inco-settings", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(&actions)?)?;
        keeper.keep(NAME, "", &[file.as_fd()])?;
        Ok(())
    }

    /// The actions that set what the run before had.
    ///
    /// # Errors
    /// There are some, and they cannot be read.
    pub(super) fn taken(keeper: &Keeper) -> Result<Vec<Action>> {
        let Some(entry) = keeper.take_one(NAME)? else {
            return Ok(Vec::new());
        };
        let file = entry.files.into_iter().next().context("it has no file")?;
        let mut file = File::from(file);
        file.rewind()?;
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text)?;
        let actions: Vec<Action> = serde_json::from_slice(&text)?;
        // No other action is carried out for a run that is no more.
        Ok(actions.into_iter().filter(|of| set_by(of).is_some()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::PolicyChoice;

    use super::*;

    fn scheduler(name: &str) -> Action {
        Action::Policy {
            service: "dns".to_owned(),
            scheduler: Some(PolicyChoice {
                policy: name.to_owned(),
                ..PolicyChoice::default()
            }),
            autoscaler: None,
        }
    }

    fn scale(instances: Option<u32>) -> Action {
        let service = "dns".to_owned();
        Action::Scale { service, instances }
    }

    #[test]
    fn the_last_of_each_setting_holds_until_it_is_undone() {
        let mut settings = RunTime::default();
        assert!(settings.note(&scale(Some(3))));
        assert!(settings.note(&scale(Some(2))));
        assert!(!settings.note(&scale(Some(2))), "as before");
        assert!(settings.note(&scheduler("maglev")));
        assert!(!settings.note(&Action::Drain {
            instance: model::InstanceId(1)
        }));
        let of: Vec<&Action> = settings.actions.values().collect();
        assert_eq!(of, [&scale(Some(2)), &scheduler("maglev")]);
        assert!(settings.note(&scale(None)));
        assert!(!settings.note(&scale(None)), "nothing is set any more");
        assert_eq!(settings.actions.len(), 1);
    }

    #[test]
    fn a_policy_of_the_file_ends_that_of_an_operator() {
        let mut settings = RunTime::default();
        settings.note(&scheduler("maglev"));
        assert!(!settings.file_sets("dns", false, true));
        assert!(!settings.file_sets("web", true, true));
        assert!(settings.file_sets("dns", true, false));
        assert!(settings.actions.is_empty());
    }

    #[test]
    fn what_a_run_before_had_is_kept_until_it_is_refused() {
        let mut settings = RunTime::default();
        settings.again(&[scale(Some(3)), scheduler("maglev")]);
        assert!(!settings.note(&scale(Some(3))), "it was kept all the time");
        assert!(settings.refused_again(&scheduler("maglev")));
        assert!(!settings.refused_again(&scheduler("maglev")));
        let of: Vec<&Action> = settings.actions.values().collect();
        assert_eq!(of, [&scale(Some(3))]);
    }

    #[test]
    fn what_is_kept_is_what_the_next_run_sets() {
        let directory = tempfile::tempdir().unwrap();
        let mut server = keeper::Server::bind(directory.path()).unwrap();
        // It ends with the test's process.
        std::thread::spawn(move || {
            while server.serve() == keeper::Order::None {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let connect = || Keeper::connect(directory.path()).unwrap().unwrap();
        let mut settings = RunTime::default();
        settings.note(&scale(Some(3)));
        settings.note(&scheduler("maglev"));
        let first = connect();
        settings.keep(&first);
        assert_eq!(
            RunTime::taken(&connect()).unwrap(),
            [scale(Some(3)), scheduler("maglev")]
        );
        settings.note(&scale(None));
        settings.file_sets("dns", true, true);
        settings.keep(&first);
        assert_eq!(RunTime::taken(&connect()).unwrap(), []);
    }
}
