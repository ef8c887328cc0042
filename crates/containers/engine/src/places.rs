//! One engine over the engines of several places: a request goes where its container is, or is to be.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Container, Engine, EngineError, EngineEvent, Execution, Label, Request, Ticket, Usage};

/// The driver's name where the engines of the places have different ones.
const SEVERAL: &str = "several";

/// The engine of one place or more.
struct Member {
    engine: Box<dyn Engine>,
    places: Vec<String>,
    /// It has reported that it does not answer, and not yet that it does again.
    is_down: bool,
}

/// Where a container is.
#[derive(Clone, Copy, Debug)]
struct Home {
    member: usize,
    /// The newest request about it.
    newest: Option<Ticket>,
}

/// Engines by place. [`ContainerSpec::place`](crate::ContainerSpec::place) says which one creates a container; without
/// it, the first does. All other requests go to the engine that has the container. An engine that does not answer
/// affects its own places only: [`EngineEvent::EngineDown`] and [`EngineEvent::EngineUp`] come once for each of them.
pub struct PlacesEngine {
    members: Vec<Member>,
    homes: BTreeMap<String, Home>,
    /// Creates and removals without an answer: the container, and whether it is a create.
    on_the_way: BTreeMap<Ticket, (String, bool)>,
    /// Scratch space of [`Engine::poll`].
    told: Vec<EngineEvent>,
}

impl PlacesEngine {
    /// One over these engines, each with the names of its places.
    pub fn new(engines: impl IntoIterator<Item = (Vec<String>, Box<dyn Engine>)>) -> PlacesEngine {
        let member = |(places, engine)| Member {
            engine,
            places,
            is_down: false,
        };
        PlacesEngine {
            members: engines.into_iter().map(member).collect(),
            homes: BTreeMap::new(),
            on_the_way: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// The engine that a container without a known one is asked of: one that answers, if any does.
    fn any(&self) -> usize {
        self.members
            .iter()
            .position(|member| !member.is_down)
            .unwrap_or(0)
    }

    fn home_of(&self, name: &str) -> usize {
        self.homes
            .get(name)
            .map_or_else(|| self.any(), |home| home.member)
    }

    /// The engine of a place. An unknown place has the first: what makes specifications knows the places.
    fn member_of(&self, place: Option<&str>) -> usize {
        let has = |member: &Member| place.is_some_and(|place| member.places.iter().any(|own| own == place));
        self.members.iter().position(has).unwrap_or(0)
    }

    /// Forgets where a container was, once the newest request about it has ended so that there is none.
    fn note_end(&mut self, ticket: Ticket, error: Option<&EngineError>) {
        let Some((name, is_create)) = self.on_the_way.remove(&ticket) else {
            return;
        };
        let there_is_none = match error {
            None => !is_create,
            Some(EngineError::NameTaken { .. }) => false,
            Some(_) => is_create,
        };
        let home = self.homes.get(&name);
        if there_is_none && home.is_some_and(|home| home.newest == Some(ticket)) {
            self.homes.remove(&name);
        }
    }
}

impl Engine for PlacesEngine {
    fn driver(&self) -> &'static str {
        let mut drivers = self.members.iter().map(|member| member.engine.driver());
        let first = drivers.next().unwrap_or(SEVERAL);
        if drivers.all(|driver| driver == first) {
            first
        } else {
            SEVERAL
        }
    }

    fn is_local(&self) -> bool {
        self.members.iter().all(|member| member.engine.is_local())
    }

    fn submit(&mut self, ticket: Ticket, request: Request) {
        let name = request.name().to_owned();
        let member = match &request {
            Request::Create(spec) => {
                let member = self.member_of(spec.place.as_deref());
                let is_elsewhere = |home: &&Home| home.member != member;
                if self.homes.get(&name).filter(is_elsewhere).is_none() {
                    let newest = None;
                    self.homes.insert(name.clone(), Home { member, newest });
                }
                // A name is taken wherever it is: the engine that has the container says so.
                self.home_of(&name)
            }
            _ => self.home_of(&name),
        };
        if matches!(request, Request::Create(_) | Request::Remove { .. }) {
            let is_create = matches!(request, Request::Create(_));
            self.on_the_way.insert(ticket, (name.clone(), is_create));
        }
        if let Some(home) = self.homes.get_mut(&name) {
            home.newest = Some(ticket);
        }
        if let Some(member) = self.members.get_mut(member) {
            member.engine.submit(ticket, request);
        }
    }

    fn execute(&mut self, execution: Execution) {
        let member = self.home_of(&execution.name);
        if let Some(member) = self.members.get_mut(member) {
            member.engine.execute(execution);
        }
    }

    fn poll(&mut self, events: &mut Vec<EngineEvent>) {
        let mut told = std::mem::take(&mut self.told);
        for index in 0..self.members.len() {
            let Some(member) = self.members.get_mut(index) else {
                continue;
            };
            member.engine.poll(&mut told);
            let places = member.places.clone();
            for event in told.drain(..) {
                match event {
                    EngineEvent::EngineDown { reason, at, .. } => {
                        self.set_down(index, true);
                        events.extend(places.iter().map(|place| EngineEvent::EngineDown {
                            place: Some(place.clone()),
                            reason: reason.clone(),
                            at,
                        }));
                    }
                    EngineEvent::EngineUp { at, after, .. } => {
                        self.set_down(index, false);
                        events.extend(places.iter().map(|place| EngineEvent::EngineUp {
                            place: Some(place.clone()),
                            at,
                            after,
                        }));
                    }
                    EngineEvent::Created { ticket, .. } | EngineEvent::Done { ticket, .. } => {
                        self.note_end(ticket, None);
                        events.push(event);
                    }
                    EngineEvent::Failed {
                        ticket, ref error, ..
                    } => {
                        self.note_end(ticket, Some(error));
                        events.push(event);
                    }
                    EngineEvent::Exited { .. } => events.push(event),
                }
            }
        }
        self.told = told;
    }

    fn list(&mut self, label: &Label) -> Result<Vec<Container>, EngineError> {
        let mut all = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            // It has said so itself; what it has is asked for once it answers.
            if member.is_down {
                continue;
            }
            for container in member.engine.list(label)? {
                let home = self.homes.entry(container.name.clone());
                home.or_insert(Home {
                    member: index,
                    newest: None,
                });
                all.push(container);
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn usage(&self, name: &str) -> Result<Usage, EngineError> {
        let not_found = || EngineError::NotFound {
            name: name.to_owned(),
        };
        let home = self.homes.get(name).ok_or_else(not_found)?;
        let member = self.members.get(home.member).ok_or_else(not_found)?;
        member.engine.usage(name)
    }
}

impl PlacesEngine {
    fn set_down(&mut self, index: usize, is_down: bool) {
        if let Some(member) = self.members.get_mut(index) {
            member.is_down = is_down;
        }
    }
}

impl fmt::Debug for PlacesEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.members.iter().map(|member| &member.places);
        f.debug_struct("PlacesEngine")
            .field("places", &places.collect::<Vec<_>>())
            .field("containers", &self.homes.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use model::Nanos;

    use super::*;
    use crate::{ContainerSpec, FakeConfig, FakeEngine};

    /// `card` with an engine of its own, `host` and `spare` with another one.
    fn engines() -> (PlacesEngine, [FakeEngine; 2]) {
        let fakes = [(); 2].map(|()| FakeEngine::new(FakeConfig::default()));
        let member = |places: &[&str], fake: &FakeEngine| -> (Vec<String>, Box<dyn Engine>) {
            let places = places.iter().map(|place| (*place).to_owned()).collect();
            (places, Box::new(fake.clone()))
        };
        let engine = PlacesEngine::new([
            member(&["card"], &fakes[0]),
            member(&["host", "spare"], &fakes[1]),
        ]);
        (engine, fakes)
    }

    fn create(name: &str, place: &str) -> Request {
        let mut spec = ContainerSpec::new(name, "nf");
        spec.place = Some(place.to_owned());
        spec.labels.insert("inco.service".to_owned(), "nf".to_owned());
        Request::Create(Box::new(spec))
    }

    /// The events of all that is on the way.
    fn events(engine: &mut PlacesEngine, fakes: &[FakeEngine; 2]) -> Vec<EngineEvent> {
        let mut events = Vec::new();
        engine.poll(&mut events);
        for fake in fakes {
            while let Some(at) = fake.next_at() {
                fake.advance(at);
            }
        }
        engine.poll(&mut events);
        events
    }

    fn names(fake: &FakeEngine) -> Vec<String> {
        fake.containers().into_iter().map(|of| of.name).collect()
    }

    #[test]
    fn a_request_goes_to_the_engine_of_its_place() {
        let (mut engine, fakes) = engines();
        for (ticket, (name, place)) in [("inco-a", "host"), ("inco-b", "card"), ("inco-c", "spare")]
            .into_iter()
            .enumerate()
        {
            engine.submit(Ticket(ticket as u64), create(name, place));
        }
        assert_eq!(events(&mut engine, &fakes).len(), 3);
        assert_eq!(names(&fakes[0]), ["inco-b"]);
        assert_eq!(names(&fakes[1]), ["inco-a", "inco-c"]);
        let listed = engine.list(&Label::any("inco.service")).unwrap();
        let listed: Vec<&str> = listed.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(listed, ["inco-a", "inco-b", "inco-c"]);
        assert_eq!((engine.driver(), engine.is_local()), ("fake", true));
        let name = "inco-b".to_owned();
        engine.submit(Ticket(9), Request::Remove { name });
        events(&mut engine, &fakes);
        assert_eq!(names(&fakes[0]), Vec::<String>::new());
        assert!(!engine.homes.contains_key("inco-b") && engine.on_the_way.is_empty());
    }

    #[test]
    fn a_failed_create_is_forgotten_and_a_taken_name_is_not() {
        let (mut engine, fakes) = engines();
        fakes[0].set_images([]);
        engine.submit(Ticket(1), create("inco-a", "card"));
        let told = events(&mut engine, &fakes);
        assert!(matches!(&told[..], [EngineEvent::Failed { .. }]), "{told:?}");
        assert!(engine.homes.is_empty());
        // The same name elsewhere, then once more at the first place.
        engine.submit(Ticket(2), create("inco-a", "host"));
        assert!(matches!(
            &events(&mut engine, &fakes)[..],
            [EngineEvent::Created { .. }]
        ));
        engine.submit(Ticket(3), create("inco-a", "card"));
        let told = events(&mut engine, &fakes);
        assert!(
            matches!(
                &told[..],
                [EngineEvent::Failed {
                    error: EngineError::NameTaken { .. },
                    ..
                }]
            ),
            "{told:?}"
        );
    }

    #[test]
    fn an_engine_that_is_down_takes_only_its_places_with_it() {
        let (mut engine, fakes) = engines();
        engine.submit(Ticket(1), create("inco-a", "card"));
        engine.submit(Ticket(2), create("inco-b", "host"));
        events(&mut engine, &fakes);
        fakes[1].set_down(true);
        let down = events(&mut engine, &fakes);
        let places: Vec<Option<&str>> = down
            .iter()
            .map(|event| match event {
                EngineEvent::EngineDown { place, .. } => place.as_deref(),
                other => unreachable!("{other:?}"),
            })
            .collect();
        assert_eq!(places, [Some("host"), Some("spare")]);
        // What the other one has is known, and it goes on making containers.
        let listed = engine.list(&Label::any("inco.service")).unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        engine.submit(Ticket(3), create("inco-c", "card"));
        assert!(matches!(
            &events(&mut engine, &fakes)[..],
            [EngineEvent::Created {
                ticket: Ticket(3),
                ..
            }]
        ));
        engine.submit(Ticket(4), create("inco-d", "spare"));
        assert!(matches!(
            &events(&mut engine, &fakes)[..],
            [EngineEvent::Failed {
                ticket: Ticket(4),
                ..
            }]
        ));
        fakes[1].set_down(false);
        let up = events(&mut engine, &fakes);
        assert!(
            matches!(&up[..], [EngineEvent::EngineUp { place: Some(a), .. }, EngineEvent::EngineUp { place: Some(b), .. }]
                if a == "host" && b == "spare"),
            "{up:?}"
        );
        assert_eq!(engine.list(&Label::any("inco.service")).unwrap().len(), 3);
        let mut late = Vec::new();
        fakes[0].advance(Nanos::from_secs(1));
        engine.poll(&mut late);
        assert_eq!(late, []);
    }
}
