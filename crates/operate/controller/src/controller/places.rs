//! Places: what is at each, the choice for a new instance, and engines that do not answer.

use autoscaling::{Autoscaler, Decision, Relocation};
use engine::CpuQuota;
use model::{EventKind, InstanceState, Nanos, PlaceObservation, ServiceId};
use placement::estimate::WIRE_BYTES;
use placement::{Costs, Goal, Lack, Needs, NoRoom, PlaceId, Placement, Room, order};

use super::{Controller, scaler_name};
use crate::instance::Instance;
use crate::settings::{LABEL_PLACE, Place, ServiceSettings};

/// A place and what is there, for status queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlaceStatus<'a> {
    /// The place.
    pub place: &'a Place,
    /// What is there, and its limits.
    pub room: Room,
    /// Since when its engine has not answered; [`None`] if it answers.
    pub down_since: Option<Nanos>,
}

/// All places; those beyond `count` are not configured. In an array, because a step that waits for room allocates
/// nothing.
pub(super) struct Rooms {
    all: [Room; PlaceId::LIMIT],
    count: usize,
}

impl Rooms {
    pub(super) fn as_slice(&self) -> &[Room] {
        self.all.get(..self.count).unwrap_or_default()
    }
}

impl Controller {
    /// The configured places with what is there, in their order.
    pub fn place_statuses(&self) -> impl Iterator<Item = PlaceStatus<'_>> {
        let rooms = self.rooms();
        let all = self.settings.places.iter().zip(&self.engines_down).enumerate();
        all.map(move |(index, (place, down_since))| PlaceStatus {
            place,
            room: rooms.all.get(index).copied().unwrap_or_default(),
            down_since: *down_since,
        })
    }

    /// The name of an instance's place; [`None`] if no places are configured.
    pub fn place_name(&self, place: PlaceId) -> Option<&str> {
        let place = self.settings.places.get(place.index())?;
        Some(&place.name)
    }

    /// Capacity in packets per second of an instance with its quota and at its place; [`None`] while that of its service
    /// is not known.
    pub fn capacity_pps(&self, instance: &Instance) -> Option<f64> {
        let service = self.services.get(instance.service.index())?;
        let usual = (service.capacity_pps, service.frame_bytes);
        let pps = capacity_of(&self.settings.places, &service.settings, usual, instance);
        (pps > 0.0).then_some(pps)
    }

    /// Whether a place is on this machine.
    pub fn is_here(&self, place: PlaceId) -> bool {
        let place = self.settings.places.get(place.index());
        place.is_none_or(|place| place.lost_after.is_none())
    }

    /// What is at each place.
    fn rooms(&self) -> Rooms {
        let mut rooms = Rooms {
            all: [Room::default(); PlaceId::LIMIT],
            count: self.settings.places.len().clamp(1, PlaceId::LIMIT),
        };
        for (index, (room, place)) in rooms.all.iter_mut().zip(&self.settings.places).enumerate() {
            let id = PlaceId(index as u8);
            room.share = place.share;
            room.instance_limit = place.instances;
            room.pps_limit = place.capacity_pps;
            room.core_pps = place.core_pps;
            room.link_limit = place.link_bytes_per_s;
            let free = place
                .cores
                .iter()
                .filter(|core| self.is_free(id, core.cpu))
                .count();
            room.free_cores = (!place.cores.is_empty()).then_some(free as u32);
        }
        for (room, down) in rooms.all.iter_mut().zip(&self.engines_down) {
            room.is_down = down.is_some();
        }
        for instance in self.instances.iter().filter(|i| takes_room(i)) {
            let Some(service) = self.services.get(instance.service.index()) else {
                continue;
            };
            if service.settings.container.is_none() {
                continue;
            }
            let arrivals = self.arrivals_of(instance);
            let capacity = capacity_of(
                &self.settings.places,
                &service.settings,
                (service.capacity_pps, service.frame_bytes),
                instance,
            );
            if let Some(room) = rooms.all.get_mut(instance.place.index()) {
                room.instances += 1;
                room.pps += capacity.max(arrivals);
                room.link_bytes_per_s += capacity.max(arrivals) * wire_bytes(service.frame_bytes);
            }
        }
        rooms
    }

    /// What is at each place, with the order in which a service fills them.
    pub(super) fn rooms_for(&self, index: usize) -> Rooms {
        let mut rooms = self.rooms();
        if let Some(service) = self.services.get(index) {
            let needs = self.needs(index);
            let places = self.settings.places.iter();
            let costs = places.map(|place| Costs {
                latency_s: place.latency.as_secs_f64(),
                watts_per_core: place.watts_per_core,
                pps_per_core: place.core_pps.unwrap_or(needs.pps / needs.cpus.max(1e-6)),
            });
            let ranks = order::ranks(goal_of(&service.settings.autoscaler), costs);
            for (room, rank) in rooms.all.iter_mut().zip(ranks) {
                room.rank = rank;
            }
        }
        rooms
    }

    /// The place of a service's next instance. [`None`] if none has room, which is told once.
    pub(super) fn choose_place(&mut self, index: usize) -> Option<PlaceId> {
        let service = &self.services[index];
        if self.settings.places.is_empty() || service.settings.container.is_none() {
            return Some(PlaceId::default());
        }
        let id = service.id;
        let needs = self.needs(index);
        let rooms = self.rooms_for(index);
        let target = self.relocation_target(id).map(Placement::At);
        let there = target.and_then(|target| target.choose(rooms.as_slice(), needs).ok());
        let placement = service.settings.placement;
        let chosen = there.map_or_else(|| placement.choose(rooms.as_slice(), needs), Ok);
        let was_told = std::mem::replace(
            &mut self.services[index].no_room_told,
            // An engine that is down is told by its own event.
            matches!(chosen, Err(NoRoom::Full | NoRoom::Cores)),
        );
        if let (Err(why @ (NoRoom::Full | NoRoom::Cores)), false) = (chosen, was_told) {
            let what = "place".to_owned();
            let reason = format!(
                "{why} ({}); a new instance waits",
                self.fill_text(rooms.as_slice())
            );
            self.event(Some(id), None, EventKind::Failure { what, reason });
        }
        chosen.ok()
    }

    /// Whether nothing has that core of a place to itself. What is being removed has it until it is gone.
    fn is_free(&self, place: PlaceId, cpu: u16) -> bool {
        let is_there = |of: PlaceId, core: Option<u16>| of == place && core == Some(cpu);
        !self.instances.iter().any(|of| is_there(of.place, of.core))
            && !self.orphans.iter().any(|of| is_there(of.place, of.core))
    }

    /// Fills the places of the service's observation, where it fills several of them in order.
    pub(super) fn observe_places(&mut self, index: usize) {
        let count = self.settings.places.len();
        let settings = &self.services[index].settings;
        let fills = settings.placement == Placement::Auto && settings.autoscaler.relocates();
        if count < 2 || settings.container.is_none() || !fills {
            self.services[index].observation.places.clear();
            return;
        }
        let needs = self.needs(index);
        let rooms = self.rooms_for(index);
        // Packets and bytes per second that each place gets.
        let mut arrivals = [(0.0, 0.0); PlaceId::LIMIT];
        for instance in self.instances.iter().filter(|i| takes_room(i)) {
            let service = self.services.get(instance.service.index());
            let frame_bytes = service.map_or(0.0, |service| service.frame_bytes);
            if let Some((pps, bytes)) = arrivals.get_mut(instance.place.index()) {
                let more = self.arrivals_of(instance);
                *pps += more;
                *bytes += more * wire_bytes(frame_bytes);
            }
        }
        let places = &mut self.services[index].observation.places;
        if places.len() != count {
            places.clear();
            places.extend(self.settings.places.iter().map(|place| PlaceObservation {
                name: place.name.clone(),
                ..PlaceObservation::default()
            }));
        }
        for ((place, room), (pps, bytes)) in places.iter_mut().zip(rooms.as_slice()).zip(arrivals) {
            // The link's limit in packets of the size that comes.
            let of_link = room
                .link_limit
                .filter(|_| bytes > 0.0)
                .map(|link| link * pps / bytes);
            place.arrivals_pps = pps;
            place.limit_pps = room.pps_limit.into_iter().chain(of_link).reduce(f64::min);
            place.has_room = !room.is_down && room.fits(needs);
            place.rank = room.rank;
        }
    }

    /// Packets per second that an instance gets.
    fn arrivals_of(&self, instance: &Instance) -> f64 {
        let service = self.services.get(instance.service.index());
        let mut seen = service.into_iter().flat_map(|of| &of.observation.instances);
        let seen = seen.find(|i| i.id == instance.id);
        seen.map_or(0.0, |i| i.arrivals_fast_pps.max(i.arrivals_stable_pps))
    }

    fn needs(&self, index: usize) -> Needs {
        let service = &self.services[index];
        Needs {
            pps: service.capacity_pps,
            cpus: service.settings.usual_cpus().unwrap_or(1.0),
            cores: u32::from(service.settings.exclusive),
            wire_bytes: wire_bytes(service.frame_bytes),
        }
    }

    /// Has an instance replaced at another place, unless an operator or a rollout has the say now.
    pub(super) fn relocate(&mut self, index: usize, relocation: Relocation, decision: &Decision) {
        let service = &self.services[index];
        let (id, policy) = (service.id, scaler_name(&service.settings.autoscaler));
        let to = PlaceId(relocation.to_place);
        let is_free = !service.manual && !service.held_back.dry_run;
        let Some(at) = self.position(relocation.instance).filter(|_| is_free) else {
            return;
        };
        let instance = &self.instances[at];
        let stays = instance.service == id && instance.state == InstanceState::Active && !instance.leaving;
        if !stays || self.is_replaced(instance) || self.relocation_target(id).is_some() {
            return;
        }
        let name = |place| self.place_name(place).unwrap_or_default().to_owned();
        let kind = EventKind::Relocated {
            from_place: name(instance.place),
            to_place: name(to),
            policy,
            reason: relocation.reason.to_string(),
            case: decision.case.clone(),
        };
        let instance = &mut self.instances[at];
        instance.leaving = true;
        instance.relocates_to = Some(to);
        self.event(Some(id), Some(relocation.instance), kind);
    }

    /// The place where the replacement of an instance of the service is to be.
    pub(super) fn relocation_target(&self, id: ServiceId) -> Option<PlaceId> {
        let mut all = self.instances.iter();
        all.find_map(|i| {
            let waits = i.service == id && i.state == InstanceState::Active;
            i.relocates_to.filter(|_| waits)
        })
    }

    /// A free core for an instance of the service at a place: one of the node of its uplink, if there is one.
    pub(super) fn take_core(&self, index: usize, place: PlaceId) -> Option<u16> {
        let settings = &self.services.get(index)?.settings;
        let cores = &self.settings.places.get(place.index())?.cores;
        if !settings.exclusive {
            return None;
        }
        let mut free = cores.iter().filter(|core| self.is_free(place, core.cpu));
        let near = free
            .clone()
            .find(|core| settings.node.is_some() && core.node == settings.node);
        Some(near.or_else(|| free.next())?.cpu)
    }

    /// Why a new instance of the service goes to that place, with what is there before it; [`None`] where it can have no
    /// other one.
    pub(super) fn why_there(&self, index: usize, chosen: PlaceId) -> Option<String> {
        let service = self.services.get(index)?;
        if self.settings.places.len() < 2 || service.settings.container.is_none() {
            return None;
        }
        if self.relocation_target(service.id) == Some(chosen) {
            return Some("it replaces an instance that is relocated there".to_owned());
        }
        let placement = service.settings.placement;
        let rooms = self.rooms_for(index);
        let rooms = rooms.as_slice();
        match placement {
            Placement::At(_) => None,
            Placement::Split => Some(format!(
                "the least full place with it ({})",
                self.fill_text(rooms)
            )),
            Placement::Auto => {
                let rank = |index: usize| placement.rank(rooms, PlaceId(index as u8));
                let own = rank(chosen.index());
                let all = self.settings.places.iter().zip(rooms).enumerate();
                let mut passed: Vec<_> = all.filter(|(index, _)| rank(*index) < own).collect();
                passed.sort_by_key(|(index, _)| rank(*index));
                let needs = self.needs(index);
                let lacks = passed
                    .iter()
                    .filter_map(|(_, (place, room))| lack_text(place, room, needs));
                let lacks = lacks.collect::<Vec<_>>().join("; ");
                let there = self
                    .settings
                    .places
                    .get(chosen.index())
                    .zip(rooms.get(chosen.index()));
                Some(match there {
                    Some((place, room)) if lacks.is_empty() => {
                        format!("the first place has room ({})", place_text(place, room))
                    }
                    _ => format!("the first place with room: {lacks}"),
                })
            }
        }
    }

    /// What is at each place, as `card 2 of 2; host 1`.
    fn fill_text(&self, rooms: &[Room]) -> String {
        let places = self.settings.places.iter().zip(rooms);
        let text = places.map(|(place, room)| place_text(place, room));
        text.collect::<Vec<_>>().join("; ")
    }

    /// The place where an instance of the service leaves first, of those that `can`. [`None`] if no places are
    /// configured.
    pub(super) fn leaves_first(&self, id: ServiceId, can: impl Fn(&Instance) -> bool) -> Option<PlaceId> {
        if self.settings.places.is_empty() {
            return None;
        }
        let placement = self.services.get(id.index())?.settings.placement;
        let rooms = self.rooms_for(id.index());
        let has = |place| {
            let mut all = self.instances.iter();
            all.any(|i| i.service == id && i.place == place && can(i))
        };
        placement.leaves(rooms.as_slice(), has)
    }

    /// The place of a container, by its label. One without a known place is at the first: the engine finds it by its
    /// name.
    pub(super) fn place_of(&self, container: &engine::Container) -> PlaceId {
        let name = container.labels.get(LABEL_PLACE);
        let mut places = self.settings.places.iter();
        let index = places.position(|place| Some(&place.name) == name);
        PlaceId(index.unwrap_or_default() as u8)
    }

    /// The part of a service's quota that an instance has at a place.
    pub(super) fn quota_at(&self, place: PlaceId, quota: CpuQuota) -> CpuQuota {
        match self.settings.places.get(place.index()) {
            Some(place) if place.share < 1.0 => CpuQuota::of_cpus(quota.cpus() * place.share),
            _ => quota,
        }
    }

    /// The words, with the name of the place if there is one.
    pub(super) fn at_place(&self, words: &str, place: PlaceId) -> String {
        match self.place_name(place) {
            Some(name) => format!("{words} at {name}"),
            None => words.to_owned(),
        }
    }

    /// What events call the engine of a place.
    pub(super) fn engine_of(&self, place: PlaceId) -> String {
        match self.place_name(place) {
            Some(name) => format!("engine of {name}"),
            None => "engine".to_owned(),
        }
    }

    /// Whether the engine of a place does not answer.
    pub(super) fn is_down(&self, place: PlaceId) -> bool {
        self.engines_down.get(place.index()).is_some_and(Option::is_some)
    }

    /// The places with that name; all without a name.
    fn named_places(&self, name: Option<&str>) -> impl Iterator<Item = PlaceId> + use<> {
        let index = name.and_then(|name| self.settings.places.iter().position(|of| of.name == name));
        let all = 0..self.engines_down.len();
        let range = index.map_or(all, |index| index..index + 1);
        range.map(|index| PlaceId(index as u8))
    }

    pub(super) fn engine_is_gone(&mut self, name: Option<&str>, reason: &str) {
        for place in self.named_places(name) {
            let now = self.now;
            let Some(down @ None) = self.engines_down.get_mut(place.index()) else {
                continue;
            };
            *down = Some(now);
            let scaling = match self.settings.places.len() {
                0 | 1 => "scaling waits until the engine answers",
                _ => "nothing changes at this place until its engine answers",
            };
            let reason = format!("{reason}; packets are still steered; {scaling}");
            let what = self.engine_of(place);
            self.event(None, None, EventKind::Failure { what, reason });
        }
    }

    pub(super) fn engine_is_back(&mut self, name: Option<&str>) {
        for place in self.named_places(name) {
            let down = self.engines_down.get_mut(place.index());
            if let Some(since) = down.and_then(Option::take) {
                let after_ms = self.now.since(since).as_millis();
                let what = self.engine_of(place);
                self.event(None, None, EventKind::Recovered { what, after_ms });
            }
        }
        for service in &mut self.services {
            service.back_off.retry_now();
        }
        for instance in &mut self.instances {
            instance.retry.retry_now();
        }
        for orphan in &mut self.orphans {
            orphan.retry.retry_now();
        }
        self.out.list_containers = true;
        self.listing_since = Some(self.now);
    }

    /// Fails the instances of places on other machines whose engine has been away for too long. Their containers are
    /// removed when it is back.
    pub(super) fn fail_lost(&mut self) {
        if self.engine_down_since().is_none() {
            return;
        }
        for index in 0..self.instances.len() {
            let instance = &self.instances[index];
            let place = instance.place;
            let since = self.engines_down.get(place.index()).copied().flatten();
            let lost_after = self
                .settings
                .places
                .get(place.index())
                .and_then(|of| of.lost_after);
            let (Some(since), Some(lost_after)) = (since, lost_after) else {
                continue;
            };
            let stays = !matches!(instance.state, InstanceState::Stopping | InstanceState::Failed);
            if stays && self.now.since(since) >= lost_after {
                let seconds = lost_after.as_secs_f64();
                let place = self.place_name(place).unwrap_or_default();
                let reason = format!("place {place} is lost: its engine has not answered for {seconds} s");
                self.fail(index, reason);
            }
        }
    }
}

/// What is at a place, as `card 2 of 2`.
fn place_text(place: &Place, room: &Room) -> String {
    let limit = room.instance_limit.map(|limit| format!(" of {limit}"));
    let cores = room
        .free_cores
        .map(|free| format!(", {free} of {} cores free", place.cores.len()));
    let [limit, cores] = [limit, cores].map(Option::unwrap_or_default);
    format!("{} {}{limit}{cores}", place.name, room.instances)
}

/// Why a place gets no new instance, in words; [`None`] if it can have one.
fn lack_text(place: &Place, room: &Room, needs: Needs) -> Option<String> {
    let name = &place.name;
    if room.is_down {
        return Some(format!("the engine of {name} does not answer"));
    }
    Some(match room.lacks(needs)? {
        Lack::Instances => {
            let limit = room.instance_limit.unwrap_or_default();
            format!("{name} has {} of {limit} instances", room.instances)
        }
        Lack::Capacity => {
            let limit = room.pps_limit.unwrap_or_default();
            format!("{name} has {:.0} of {limit:.0} packets/s", room.pps)
        }
        Lack::Link => format!("the link of {name} is full"),
        Lack::Cores => {
            let free = room.free_cores.unwrap_or_default();
            format!("{name} has {free} of {} cores free", place.cores.len())
        }
    })
}

/// What the places of a service with that autoscaler are to be good for.
pub fn goal_of(autoscaler: &Autoscaler) -> Goal {
    match autoscaler.goal() {
        autoscaling::Goal::Performance => Goal::Performance,
        autoscaling::Goal::Cpu => Goal::Cpu,
        autoscaling::Goal::Power => Goal::Power,
    }
}

/// Bytes of a frame on a link; 0 where its length is unknown.
fn wire_bytes(frame_bytes: f64) -> f64 {
    if frame_bytes > 0.0 {
        frame_bytes + WIRE_BYTES
    } else {
        0.0
    }
}

/// Capacity in packets per second of an instance of the service: what the cores of its place process, if that is known;
/// else that of the service in proportion to its quota. At most what the link to its place carries of frames of that
/// length.
pub(super) fn capacity_of(
    places: &[Place],
    settings: &ServiceSettings,
    (usual_pps, frame_bytes): (f64, f64),
    instance: &Instance,
) -> f64 {
    let place = places.get(instance.place.index());
    let place = place.filter(|_| settings.container.is_some());
    let processed = match place.and_then(|of| of.core_pps) {
        Some(core_pps) => core_pps * instance.cpus.unwrap_or(1.0),
        None => settings.capacity_of(usual_pps, instance.cpus),
    };
    let link = place.and_then(|of| of.link_bytes_per_s);
    let wire = wire_bytes(frame_bytes);
    link.filter(|_| wire > 0.0)
        .map_or(processed, |link| processed.min(link / wire))
}

/// The quota that an instance would have at a place with the whole share: policies compare and change those.
pub(super) fn whole_cpus(places: &[Place], instance: &Instance) -> Option<f64> {
    let share = places.get(instance.place.index()).map_or(1.0, |of| of.share);
    instance.cpus.map(|cpus| cpus / share)
}

/// Whether an instance counts towards the limits of its place: one that leaves does not.
fn takes_room(instance: &Instance) -> bool {
    match instance.state {
        InstanceState::Creating | InstanceState::Starting | InstanceState::Standby => true,
        InstanceState::Active => !instance.leaving,
        InstanceState::Draining | InstanceState::Stopping | InstanceState::Failed | InstanceState::Gone => {
            false
        }
    }
}
