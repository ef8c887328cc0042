//! The state, the selection, and the effect of each key.

use api::types::{ActorsRow, FlowRow, History, InstanceRow, ServiceRow, Status};
use model::{Action, Event, InstanceId, PolicyChoice};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::Histories;

/// An update from the feed.
#[derive(Clone, Debug)]
pub(super) enum Update {
    /// A new state.
    Observed(Box<Observed>),
    /// No inco answers, with the reason.
    Gone(String),
    /// The outcome of an action.
    Done(Result<String, String>),
}

/// The state of inco at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub(super) status: Status,
    pub(super) services: Vec<ServiceRow>,
    pub(super) instances: Vec<InstanceRow>,
    pub(super) actors: Vec<ActorsRow>,
    /// inco's history and the number of its points per point here; only with the first state.
    pub(super) past: Option<(History, usize)>,
    /// The newest events, oldest first; [`None`] if there are no new ones.
    pub(super) events: Option<Vec<Event>>,
    /// The largest flows of the selected instance.
    pub(super) flows: Vec<FlowRow>,
}

/// A key's request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyAction {
    Quit,
    Act(Action),
    LookAt(Option<InstanceId>),
}

/// The current page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    #[default]
    Overview,
    Flows,
    Events,
    Actors,
    Instance(InstanceId),
    Help,
}

/// By what instances are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortKey {
    #[default]
    Id,
    Rate,
    Lost,
    Flows,
    Ring,
}

impl SortKey {
    pub(super) const fn name(self) -> &'static str {
        match self {
            SortKey::Id => "id",
            SortKey::Rate => "rate",
            SortKey::Lost => "losses",
            SortKey::Flows => "flows",
            SortKey::Ring => "ring",
        }
    }

    const fn next(self) -> SortKey {
        match self {
            SortKey::Id => SortKey::Rate,
            SortKey::Rate => SortKey::Lost,
            SortKey::Lost => SortKey::Flows,
            SortKey::Flows => SortKey::Ring,
            SortKey::Ring => SortKey::Id,
        }
    }
}

/// The longest text that instances are filtered by, in characters.
const FILTER_LIMIT: usize = 64;

/// A selectable row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Row {
    Service(String),
    Instance(InstanceId),
}

/// An input below the page that precedes an action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prompt {
    /// A yes-or-no question.
    Confirm { question: String, action: Action },
    /// The number of instances.
    Count { service: String, digits: String },
    /// The choice of a policy.
    Policy { service: String, at: usize },
}

/// The available policies: kind and name.
pub(super) fn policies() -> Vec<(&'static str, &'static str)> {
    let schedulers = scheduling::Scheduler::NAMES
        .iter()
        .map(|name| ("scheduler", *name));
    let autoscalers = autoscaling::Autoscaler::NAMES
        .iter()
        .map(|name| ("autoscaler", *name));
    schedulers.chain(autoscalers).collect()
}

/// The complete display state.
#[derive(Clone, Debug, Default)]
pub(super) struct Top {
    pub(super) observed: Observed,
    /// The newest events, oldest first.
    pub(super) events: Vec<Event>,
    pub(super) histories: Histories,
    /// Packets dropped per second by all instances at the last update.
    pub(super) lost_pps: f64,
    pub(super) page: Page,
    pub(super) selected: Option<Row>,
    pub(super) prompt: Option<Prompt>,
    /// Only services and instances that contain it are shown.
    pub(super) filter: String,
    /// Whether keys go into the filter.
    pub(super) is_filtering: bool,
    pub(super) sort_by: SortKey,
    /// The outcome of the last action; [`Err`] if it was refused.
    pub(super) outcome: Option<Result<String, String>>,
    /// The reason if no inco answers.
    pub(super) gone: Option<String>,
    /// Whether inco has ever answered.
    pub(super) was_seen: bool,
}

impl Top {
    /// Applies an update from the feed.
    pub(super) fn update(&mut self, update: Update) {
        match update {
            Update::Gone(reason) => self.gone = Some(reason),
            Update::Done(outcome) => self.outcome = Some(outcome),
            Update::Observed(observed) => self.see(*observed),
        }
    }

    fn see(&mut self, mut observed: Observed) {
        self.gone = None;
        let is_other = observed.status.pid != self.observed.status.pid;
        let seconds = observed.status.uptime_s - self.observed.status.uptime_s;
        if is_other {
            self.histories.clear();
            if self.was_seen {
                self.outcome = Some(Ok(format!(
                    "another inco is running now (process {})",
                    observed.status.pid
                )));
            }
        }
        self.was_seen = true;
        let lost = observed
            .status
            .accounting
            .dropped
            .saturating_sub(self.observed.status.accounting.dropped);
        self.lost_pps = if is_other || seconds <= 0.0 {
            0.0
        } else {
            lost as f64 / seconds
        };
        if let Some((past, step)) = observed.past.take() {
            self.histories = Histories::of_past(&past, step);
        }
        self.histories.note(&observed.instances, seconds);
        if let Some(events) = observed.events.take() {
            self.events = events;
        }
        self.observed = observed;
        self.select_one();
    }

    /// Selects the first row where the selected one is not shown.
    fn select_one(&mut self) {
        let rows = self.rows();
        if self.selected.as_ref().is_none_or(|row| !rows.contains(row)) {
            self.selected = rows.into_iter().next();
        }
    }

    /// The services that the filter leaves: those whose name contains it, or that have such an instance.
    pub(super) fn services(&self) -> impl Iterator<Item = &ServiceRow> {
        let has_instance = |name: &str| {
            let instances = self.observed.instances.iter();
            instances
                .filter(|row| row.service == *name)
                .any(|row| self.is_selected_by_filter(row))
        };
        let services = self.observed.services.iter();
        services.filter(move |row| row.name.contains(&self.filter) || has_instance(&row.name))
    }

    /// The instances that the filter leaves, in the chosen order: the largest first, except for ids.
    pub(super) fn instances(&self) -> Vec<&InstanceRow> {
        let mut rows: Vec<_> = self
            .observed
            .instances
            .iter()
            .filter(|row| self.is_selected_by_filter(row))
            .collect();
        let figure = |row: &InstanceRow| match self.sort_by {
            SortKey::Id => 0.0,
            SortKey::Rate => row.to_pps,
            SortKey::Lost => self
                .histories
                .of(row.id)
                .map_or(0.0, |history| history.lost_pps()),
            SortKey::Flows => row.live_flows as f64,
            SortKey::Ring => row.ring_occupancy,
        };
        // Stable, so that instances alike stay in the order of their ids.
        rows.sort_by(|a, b| figure(b).total_cmp(&figure(a)));
        rows
    }

    fn is_selected_by_filter(&self, row: &InstanceRow) -> bool {
        let text = format!("{}/{} {}", row.service, row.id.0, row.state.name());
        text.contains(&self.filter)
    }

    /// The selectable rows, in display order.
    pub(super) fn rows(&self) -> Vec<Row> {
        let services = self.services().map(|row| Row::Service(row.name.clone()));
        let instances = self.instances().into_iter().map(|row| Row::Instance(row.id));
        services.chain(instances).collect()
    }

    /// The instance with that id, if it still exists.
    pub(super) fn instance(&self, id: InstanceId) -> Option<&InstanceRow> {
        self.observed.instances.iter().find(|row| row.id == id)
    }

    fn selected_instance(&self) -> Option<&InstanceRow> {
        match (self.page, &self.selected) {
            (Page::Instance(id), _) => self.instance(id),
            (_, Some(Row::Instance(id))) => self.instance(*id),
            _ => None,
        }
    }

    /// The selected service, or that of the selected instance.
    fn selected_service(&self) -> Option<&ServiceRow> {
        let name = match (self.selected_instance(), &self.selected) {
            (Some(instance), _) => &instance.service,
            (None, Some(Row::Service(name))) => name,
            _ => return None,
        };
        self.observed.services.iter().find(|row| row.name == *name)
    }

    fn select(&mut self, steps: isize) {
        let rows = self.rows();
        let at = rows
            .iter()
            .position(|row| Some(row) == self.selected.as_ref())
            .unwrap_or(0);
        let to = at.saturating_add_signed(steps).min(rows.len().saturating_sub(1));
        self.selected = rows.into_iter().nth(to);
    }

    /// Handles a key; returns its request, if any.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<KeyAction> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return matches!(key.code, KeyCode::Char('c' | 'd')).then_some(KeyAction::Quit);
        }
        if self.prompt.is_some() {
            return self.answer(key.code);
        }
        if self.is_filtering {
            self.type_filter(key.code);
            return None;
        }
        self.outcome = None;
        match key.code {
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Char('o') => self.sort_by = self.sort_by.next(),
            KeyCode::Char('q') => return Some(KeyAction::Quit),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => return self.turn_to(Page::Overview),
            KeyCode::Char('1') => return self.turn_to(Page::Overview),
            KeyCode::Char('2') => return self.turn_to(Page::Flows),
            KeyCode::Char('3') => return self.turn_to(Page::Events),
            KeyCode::Char('4') => return self.turn_to(Page::Actors),
            KeyCode::Char('?' | 'h') => return self.turn_to(Page::Help),
            KeyCode::Tab => {
                let next = match self.page {
                    Page::Overview => Page::Flows,
                    Page::Flows => Page::Events,
                    // Most services have no actors.
                    Page::Events if !self.observed.actors.is_empty() => Page::Actors,
                    Page::Events | Page::Actors | Page::Instance(_) | Page::Help => Page::Overview,
                };
                return self.turn_to(next);
            }
            KeyCode::Up | KeyCode::Char('k') => return self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => return self.step(1),
            KeyCode::PageUp => return self.step(-10),
            KeyCode::PageDown => return self.step(10),
            KeyCode::Enter | KeyCode::Right => {
                let id = self.selected_instance()?.id;
                return self.turn_to(Page::Instance(id));
            }
            KeyCode::Char('d') => self.prompt = self.ask_drain(),
            KeyCode::Char('u') => self.prompt = self.ask_undrain(),
            KeyCode::Char('s') => {
                self.prompt = self.selected_service().map(|service| Prompt::Count {
                    service: service.name.clone(),
                    digits: String::new(),
                });
            }
            KeyCode::Char('+') => self.prompt = self.ask_scale(1),
            KeyCode::Char('-') => self.prompt = self.ask_scale(-1),
            KeyCode::Char('a') => self.prompt = self.ask_auto(),
            KeyCode::Char('p') => {
                self.prompt = self.selected_service().map(|service| Prompt::Policy {
                    service: service.name.clone(),
                    at: 0,
                });
            }
            _ => {}
        }
        None
    }

    /// A key while the filter is written: what it leaves is shown at once.
    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_LIMIT => self.filter.push(c),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_filtering = false;
            }
            _ => {}
        }
        self.select_one();
    }

    /// Moves the selection by `steps` rows; an instance's page follows it.
    fn step(&mut self, steps: isize) -> Option<KeyAction> {
        self.select(steps);
        match (self.page, &self.selected) {
            (Page::Instance(_), Some(Row::Instance(id))) => {
                let id = *id;
                self.turn_to(Page::Instance(id))
            }
            _ => None,
        }
    }

    fn turn_to(&mut self, page: Page) -> Option<KeyAction> {
        let before = std::mem::replace(&mut self.page, page);
        self.observed.flows.clear();
        match (before, page) {
            (_, Page::Instance(id)) => {
                self.selected = Some(Row::Instance(id));
                Some(KeyAction::LookAt(Some(id)))
            }
            (Page::Instance(_), _) => Some(KeyAction::LookAt(None)),
            _ => None,
        }
    }

    fn ask_drain(&self) -> Option<Prompt> {
        let row = self.selected_instance()?;
        Some(Prompt::Confirm {
            question: format!(
                "Drain instance {} of {}? It gets no new flows and is removed when its {} have ended.",
                row.id, row.service, row.live_flows
            ),
            action: Action::Drain { instance: row.id },
        })
    }

    fn ask_undrain(&self) -> Option<Prompt> {
        let row = self.selected_instance()?;
        Some(Prompt::Confirm {
            question: format!("Cancel the drain of instance {} of {}?", row.id, row.service),
            action: Action::Undrain { instance: row.id },
        })
    }

    fn ask_scale(&self, by: i32) -> Option<Prompt> {
        let row = self.selected_service()?;
        Some(ask_count(&row.name, row.desired.saturating_add_signed(by)))
    }

    fn ask_auto(&self) -> Option<Prompt> {
        let row = self.selected_service()?;
        Some(Prompt::Confirm {
            question: format!(
                "Let {} decide the number of instances of {} again?",
                row.autoscaler, row.name
            ),
            action: Action::Scale {
                service: row.name.clone(),
                instances: None,
            },
        })
    }

    /// Handles a key during a prompt. Only `y` and Enter trigger an action.
    fn answer(&mut self, key: KeyCode) -> Option<KeyAction> {
        let mut prompt = self.prompt.take()?;
        if matches!(key, KeyCode::Esc) {
            return None;
        }
        match &mut prompt {
            Prompt::Confirm { action, .. } => match key {
                KeyCode::Char('y' | 'Y') => return Some(KeyAction::Act(action.clone())),
                KeyCode::Char('n' | 'N' | 'q') => return None,
                _ => {}
            },
            Prompt::Count { service, digits } => match key {
                // Up to four digits: more exceed every limit.
                KeyCode::Char(digit) if digit.is_ascii_digit() && digits.len() < 4 => digits.push(digit),
                KeyCode::Backspace => {
                    digits.pop();
                }
                KeyCode::Enter => {
                    if let Ok(count) = digits.parse() {
                        prompt = ask_count(service, count);
                    }
                }
                _ => {}
            },
            Prompt::Policy { service, at } => {
                let policies = policies();
                match key {
                    KeyCode::Up | KeyCode::Char('k') => *at = at.saturating_sub(1),
                    KeyCode::Down | KeyCode::Char('j') => {
                        *at = (*at + 1).min(policies.len().saturating_sub(1))
                    }
                    KeyCode::Enter => {
                        if let Some((kind, name)) = policies.get(*at) {
                            prompt = ask_policy(service, kind, name);
                        }
                    }
                    _ => {}
                }
            }
        }
        self.prompt = Some(prompt);
        None
    }
}

fn ask_count(service: &str, count: u32) -> Prompt {
    Prompt::Confirm {
        question: format!(
            "Set {service} to {count} manually? The autoscaler does not decide until you press a."
        ),
        action: Action::Scale {
            service: service.to_owned(),
            instances: Some(count),
        },
    }
}

fn ask_policy(service: &str, kind: &str, name: &str) -> Prompt {
    let choice = PolicyChoice {
        policy: name.to_owned(),
        parameters: serde_json::Map::new(),
    };
    let (scheduler, autoscaler) = match kind {
        "scheduler" => (Some(choice), None),
        _ => (None, Some(choice)),
    };
    Prompt::Confirm {
        question: format!("Set the {kind} of {service} to {name}, with its defaults? No pinned flow moves."),
        action: Action::Policy {
            service: service.to_owned(),
            scheduler,
            autoscaler,
        },
    }
}
