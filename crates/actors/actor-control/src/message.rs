//! The messages, and what they may say at most.

use std::fmt;

use actor_migration::Record;
use actor_scheduling::groups::{Case, Decided};
use actor_scheduling::{Decision, PolicyName, Queues};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The number of what both ends understand.
pub const VERSION: u32 = 2;
/// Bytes of a message, at most: it fits into the buffer of a socket.
pub const MESSAGE_BYTES: usize = 64 << 10;
/// How long a message runs before a side says so, in ns.
pub const RUNNING_TOLD_NS: u64 = 10_000_000;
/// Actors of a service, at most. Their numbers are below it.
pub const ACTORS_LIMIT: u32 = 256;
/// Cores of a side, at most.
pub const CORES_LIMIT: u16 = 64;
/// Rows of a report, at most; others follow in the next one.
pub const ROWS_LIMIT: usize = 64;
/// Events of a report, at most; others follow in the next one.
pub const EVENTS_LIMIT: usize = 48;
/// Bytes of a reason, at most.
pub const REASON_BYTES: usize = 256;
/// Bytes of the kind of an actor with its options, at most.
pub const WORD_BYTES: usize = 256;
/// Ports of the network that belong to actors, at most.
pub const ROUTES_LIMIT: usize = 1_024;

/// A side of a service of actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The cores of the card.
    Card,
    /// Those of the host.
    Host,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::Card, Side::Host];

    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Card => Side::Host,
            Side::Host => Side::Card,
        }
    }

    /// 0 for the card, 1 for the host.
    pub fn index(self) -> usize {
        match self {
            Side::Card => 0,
            Side::Host => 1,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Card => "card",
            Side::Host => "host",
        })
    }
}

impl std::str::FromStr for Side {
    type Err = String;

    fn from_str(word: &str) -> Result<Side, String> {
        match word {
            "card" => Ok(Side::Card),
            "host" => Ok(Side::Host),
            _ => Err(format!("`{word}` is no side: card or host")),
        }
    }
}

/// What the runtime of a side is made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Which core runs which actor next.
    pub policy: PolicyName,
    /// Cores; 1 to [`CORES_LIMIT`].
    pub cores: u16,
    /// How they share what is served first come, first served.
    #[serde(default)]
    pub queues: Queues,
    /// As in `actor-scheduling`, in ns.
    pub quantum_ns: u64,
    /// As in `actor-scheduling`, in ns.
    pub tail_threshold_ns: u64,
    /// As in `actor-scheduling`, in thousandths.
    pub hysteresis_thousandths: u32,
    /// How long a core without a message sleeps, in ns; 0: it polls.
    pub rest_ns: u64,
    /// The actor that gets what comes from the network to no port of another one.
    pub entry: u32,
    /// Ports whose packets are messages of an actor: each with its number.
    pub routes: Vec<(u16, u32)>,
    /// How many processes this side had before. It tells apart the clients of each.
    pub incarnation: u32,
}

/// How an actor begins on a side: as in `actor-side`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Begin {
    /// It is new, and runs here.
    Here,
    /// It is new, and runs on the other side.
    Away,
    /// A process of this side had ended. What both sides have noted.
    Again {
        /// This side, unless its region is lost.
        #[serde(with = "bits")]
        own: Option<Record>,
        /// The other side, likewise.
        #[serde(with = "bits")]
        peer: Option<Record>,
    },
}

/// An actor that both sides know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declaration {
    /// Its number.
    pub actor: u32,
    /// What it is made from.
    pub kind: String,
    /// Messages that wait for it, at most.
    pub mailbox_limit: u32,
    /// Messages that are held while it moves, at most.
    pub held_limit: u32,
}

/// What a side has noted of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// The actor.
    pub actor: u32,
    /// Nothing where its region is lost, or a message was under way in it.
    #[serde(with = "bits")]
    pub record: Option<Record>,
}

/// What a side is to do with one of its actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Move it to the other side.
    Move,
    /// Start none of its messages from now on. Its mailbox takes them.
    Pause,
    /// Go on with them.
    Resume,
    /// End it, with the messages that wait for it.
    Stop,
}

/// What inco says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToSide {
    /// The first message.
    Settings(Settings),
    /// An actor. With the descriptor of its region on this side.
    Actor {
        /// It.
        #[serde(flatten)]
        declaration: Declaration,
        /// How it begins.
        begin: Begin,
    },
    /// The end of a new channel. With its descriptor.
    Attach {
        /// The number of the channel. A later one has a higher number.
        number: u64,
        /// What the DMA engine of this side is declared to take until the other side can read, in ns.
        latency_ns: u64,
        /// Its bandwidth.
        bytes_per_second: u64,
    },
    /// All actors are declared. Answered by [`FromSide::Ready`] or [`FromSide::Refused`].
    Begin,
    /// The cores begin, unless they have.
    Start,
    /// The process of the other side has ended. What it had noted. Answered by [`FromSide::Heard`].
    PeerEnded {
        /// Of each actor.
        records: Vec<Noted>,
    },
    /// Answered by [`FromSide::Answer`].
    Command {
        /// Its number, for the answer.
        id: u64,
        /// The actor.
        actor: u32,
        /// What.
        what: Command,
    },
}

/// What a side says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum FromSide {
    /// The first message on each connection.
    Hello {
        /// Its [`VERSION`].
        version: u32,
        /// Which side it is.
        side: Side,
        /// Whether it has begun, for a run of inco before.
        has_begun: bool,
        /// The number of its channel, where it has one.
        channel: Option<u64>,
    },
    /// All is prepared.
    Ready,
    /// It cannot be prepared.
    Refused {
        /// Why.
        reason: String,
    },
    /// What this side has noted, after it has done what follows from the other one's end.
    Heard {
        /// Of each actor.
        records: Vec<Noted>,
    },
    /// What became of a command.
    Answer {
        /// The command's.
        id: u64,
        /// Why it was not done.
        error: Option<String>,
    },
    /// What has changed since the last report.
    Report {
        /// Actors of which something has changed.
        rows: Vec<Line>,
        /// What happened to actors, oldest first.
        events: Vec<Happening>,
        /// Totals.
        counts: Counts,
        /// What was decided about groups of actors and cores. A report that has it has neither rows nor events, since
        /// it may be long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decided: Option<Box<Decided>>,
    },
}

/// The phase of a move, at its source: as in `actor-migration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The target gets ready.
    Prepare,
    /// The actor finishes what it has.
    Ready,
    /// Its objects go.
    Gone,
    /// What was held is forwarded.
    Clean,
}

impl From<actor_migration::Phase> for Phase {
    fn from(phase: actor_migration::Phase) -> Phase {
        match phase {
            actor_migration::Phase::Prepare => Phase::Prepare,
            actor_migration::Phase::Ready => Phase::Ready,
            actor_migration::Phase::Gone => Phase::Gone,
            actor_migration::Phase::Clean => Phase::Clean,
        }
    }
}

/// Where messages of an actor wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// In the line, first come, first served.
    #[default]
    Fcfs,
    /// In the round, by deficits.
    Drr,
}

/// An actor, as a side sees it. Of one that is on the other side most are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    /// The actor.
    pub actor: u32,
    /// Whether it is here.
    pub is_here: bool,
    /// Whether it is lost, on both sides.
    pub is_lost: bool,
    /// Whether none of its messages starts.
    pub is_paused: bool,
    /// Whether it has ended here.
    pub is_stopped: bool,
    /// The phase of its move away from here.
    pub phase: Option<Phase>,
    /// Where its messages wait.
    pub group: Group,
    /// Messages that wait.
    pub waiting: u64,
    /// Messages that are held for a move.
    pub held: u64,
    /// Messages that have ended here since the process began, or since it came last.
    pub served: u64,
    /// Messages that found the mailbox full, likewise.
    pub refused: u64,
    /// Its objects.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Its run time, likewise, in ns.
    pub ran_ns: u64,
    /// The mean of its response times, in ns.
    pub mean_ns: u64,
    /// Their mean and three deviations, in ns.
    pub tail_ns: u64,
    /// How long the message has run that runs now, in ns, if that is more than [`RUNNING_TOLD_NS`]; else 0.
    pub running_ns: u64,
}

/// What happened to an actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// The actor.
    pub actor: u32,
    /// When, on the machine's monotonic clock, in ns.
    pub at_ns: u64,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A phase of its move away from here begins.
    Phase(Phase),
    /// It is on the other side now.
    Moved,
    /// It came from the other side.
    Came,
    /// A move has ended without it.
    Stayed(Why),
    /// It runs nowhere: its state is lost.
    Lost,
    /// It cannot go on, by its own word.
    Failed {
        /// The word.
        reason: String,
        /// Messages that had not ended.
        lost: u64,
    },
}

/// Why an actor stayed where it was: as in `actor-migration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The target had no region for it.
    Refused,
    /// The target could not take its objects.
    Failed,
    /// It took too long.
    Cancelled,
    /// The other side's process has ended.
    PeerEnded,
}

/// Totals of a side's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Messages from the network.
    pub requests: u64,
    /// Messages to it.
    pub answers: u64,
    /// What came from the network and was no message.
    pub malformed: u64,
    /// Answers to clients that are not known any more.
    pub unknown_clients: u64,
    /// Answers for which the network had no room.
    pub unsent: u64,
    /// Messages for actors that were refused, beside those at full mailboxes.
    pub refused: u64,
    /// Messages from the other side that say nothing.
    pub nonsense: u64,
    /// Times that the channel could not be used any longer.
    pub channels_lost: u64,
}

/// Records as the numbers beside objects.
mod bits {
    use actor_migration::Record;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(record: &Option<Record>, to: S) -> Result<S::Ok, S::Error> {
        record.map(Record::to_bits).serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Record>, D::Error> {
        let Some(bits) = Option::<u64>::deserialize(from)? else {
            return Ok(None);
        };
        let record = Record::from_bits(bits);
        record
            .map(Some)
            .ok_or_else(|| D::Error::custom("no record has this number"))
    }
}

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub enum Nonsense {
    /// Longer than [`MESSAGE_BYTES`].
    #[error("a message of {0} bytes; the limit is {MESSAGE_BYTES}")]
    TooLong(usize),
    /// It is not written as a message.
    #[error("no message: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// A part of it is beyond its limit.
    #[error("{0} beyond the limit")]
    Beyond(&'static str),
    /// It came with another number of descriptors.
    #[error("{0} descriptors with a message that has {1}")]
    Files(usize, usize),
}

/// A message of one of the two.
pub trait Said: Serialize + DeserializeOwned {
    /// Whether each part is within its limit.
    ///
    /// # Errors
    /// [`Nonsense::Beyond`].
    fn check(&self) -> Result<(), Nonsense>;

    /// How many descriptors come with it.
    fn files(&self) -> usize;
}

fn within(is_within: bool, what: &'static str) -> Result<(), Nonsense> {
    is_within.then_some(()).ok_or(Nonsense::Beyond(what))
}

fn check_actor(actor: u32) -> Result<(), Nonsense> {
    within(actor < ACTORS_LIMIT, "the number of an actor is")
}

fn check_records(records: &[Noted]) -> Result<(), Nonsense> {
    within(records.len() <= ACTORS_LIMIT as usize, "the count of records is")?;
    records.iter().try_for_each(|noted| check_actor(noted.actor))
}

fn check_decided(of: &Decided) -> Result<(), Nonsense> {
    let Case { cores, actors, .. } = &of.case;
    within((1..=CORES_LIMIT).contains(cores), "the count of cores is")?;
    within(actors.len() <= ACTORS_LIMIT as usize, "the count of actors is")?;
    for seen in actors {
        check_actor(seen.actor.0)?;
        within(seen.name.is_none(), "the name of an actor is")?;
    }
    let count = of.decisions.len();
    within(count <= usize::from(CORES_LIMIT) + 1, "the count of decisions is")?;
    of.decisions.iter().try_for_each(|decision| match decision {
        Decision::Actor(actor, _) => check_actor(actor.0),
        Decision::Core(core, _) => within(core.0 < *cores, "the number of a core is"),
    })
}

fn check_reason(reason: &str) -> Result<(), Nonsense> {
    within(reason.len() <= REASON_BYTES, "a reason is")
}

impl Said for ToSide {
    fn check(&self) -> Result<(), Nonsense> {
        match self {
            ToSide::Settings(settings) => {
                within(
                    (1..=CORES_LIMIT).contains(&settings.cores),
                    "the count of cores is",
                )?;
                within(settings.routes.len() <= ROUTES_LIMIT, "the count of ports is")?;
                settings
                    .routes
                    .iter()
                    .try_for_each(|(_, actor)| check_actor(*actor))?;
                check_actor(settings.entry)
            }
            ToSide::Actor { declaration, .. } => {
                within(declaration.kind.len() <= WORD_BYTES, "the kind of an actor is")?;
                check_actor(declaration.actor)
            }
            ToSide::PeerEnded { records } => check_records(records),
            ToSide::Command { actor, .. } => check_actor(*actor),
            ToSide::Attach { .. } | ToSide::Begin | ToSide::Start => Ok(()),
        }
    }

    fn files(&self) -> usize {
        usize::from(matches!(self, ToSide::Actor { .. } | ToSide::Attach { .. }))
    }
}

impl Said for FromSide {
    fn check(&self) -> Result<(), Nonsense> {
        match self {
            FromSide::Refused { reason } => check_reason(reason),
            FromSide::Heard { records } => check_records(records),
            FromSide::Answer { error, .. } => error.as_deref().map_or(Ok(()), check_reason),
            FromSide::Report {
                rows,
                events,
                decided,
                ..
            } => {
                if let Some(decided) = decided {
                    within(
                        rows.is_empty() && events.is_empty(),
                        "what a decision comes with is",
                    )?;
                    check_decided(decided)?;
                }
                within(rows.len() <= ROWS_LIMIT, "the count of rows is")?;
                rows.iter().try_for_each(|row| check_actor(row.actor))?;
                within(events.len() <= EVENTS_LIMIT, "the count of events is")?;
                events.iter().try_for_each(|event| {
                    check_actor(event.actor)?;
                    match &event.what {
                        What::Failed { reason, .. } => check_reason(reason),
                        _ => Ok(()),
                    }
                })
            }
            FromSide::Hello { .. } | FromSide::Ready => Ok(()),
        }
    }

    fn files(&self) -> usize {
        0
    }
}

/// A reason as a message takes it: cut to its limit, and without control characters.
pub fn reason(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut cut = String::new();
    for c in plain {
        if cut.len() + c.len_utf8() > REASON_BYTES {
            break;
        }
        cut.push(c);
    }
    cut
}

/// The message that bytes say, within all limits.
///
/// # Errors
/// [`Nonsense`], for any other bytes.
pub fn read<T: Said>(bytes: &[u8]) -> Result<T, Nonsense> {
    if bytes.len() > MESSAGE_BYTES {
        return Err(Nonsense::TooLong(bytes.len()));
    }
    let said: T = serde_json::from_slice(bytes)?;
    said.check()?;
    Ok(said)
}

/// The bytes of a message.
///
/// # Errors
/// [`Nonsense`], if it is beyond a limit: the other end would refuse it.
pub fn write<T: Said>(said: &T) -> Result<Vec<u8>, Nonsense> {
    said.check()?;
    let bytes = serde_json::to_vec(said)?;
    if bytes.len() > MESSAGE_BYTES {
        return Err(Nonsense::TooLong(bytes.len()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use actor_scheduling::groups::Seen;
    use actor_scheduling::{ActorId, CoreId};
    use model::Nanos;
    use proptest::prelude::*;

    use super::*;

    fn record() -> impl Strategy<Value = Option<Record>> {
        (0..5_u64).prop_map(Record::from_bits)
    }

    fn noted() -> impl Strategy<Value = Noted> {
        (0..ACTORS_LIMIT, record()).prop_map(|(actor, record)| Noted { actor, record })
    }

    fn line() -> impl Strategy<Value = Line> {
        (0..ACTORS_LIMIT, any::<[bool; 5]>(), any::<[u64; 10]>()).prop_map(|(actor, flags, of)| Line {
            actor,
            is_here: flags[0],
            is_lost: flags[1],
            is_paused: flags[2],
            is_stopped: flags[4],
            phase: flags[3].then_some(Phase::Gone),
            group: if flags[0] { Group::Drr } else { Group::Fcfs },
            waiting: of[0],
            held: of[1],
            served: of[2],
            refused: of[3],
            ran_ns: of[4],
            mean_ns: of[5],
            tail_ns: of[6],
            objects: of[7],
            object_bytes: of[8],
            running_ns: of[9],
        })
    }

    fn what() -> impl Strategy<Value = What> {
        prop_oneof![
            Just(What::Phase(Phase::Prepare)),
            Just(What::Moved),
            Just(What::Stayed(Why::PeerEnded)),
            ("[\"a-z\\n]{0,64}", any::<u64>()).prop_map(|(reason, lost)| What::Failed { reason, lost }),
        ]
    }

    fn group() -> impl Strategy<Value = actor_scheduling::Group> {
        prop_oneof![
            Just(actor_scheduling::Group::Fcfs),
            Just(actor_scheduling::Group::Drr)
        ]
    }

    /// A decision about as many actors and cores as there may be, with the longest figures.
    fn decided() -> impl Strategy<Value = Decided> {
        let seen = (0..ACTORS_LIMIT, group(), any::<[u64; 4]>()).prop_map(|(actor, group, of)| Seen {
            actor: ActorId(actor),
            name: None,
            group,
            samples: of[0],
            response_tail_ns: of[1],
            service_tail_ns: of[2],
            load_ppm: of[3],
        });
        let decision = prop_oneof![
            (0..ACTORS_LIMIT, group()).prop_map(|(actor, group)| Decision::Actor(ActorId(actor), group)),
            (0..CORES_LIMIT, group()).prop_map(|(core, group)| Decision::Core(CoreId(core), group)),
        ];
        let actors = proptest::collection::vec(seen, 0..=ACTORS_LIMIT as usize);
        let decisions = proptest::collection::vec(decision, 0..=usize::from(CORES_LIMIT) + 1);
        (any::<[u64; 4]>(), actors, decisions).prop_map(|(of, actors, decisions)| Decided {
            at: Nanos(of[0]),
            case: Case {
                tail_threshold_ns: of[1],
                returns_below_ns: of[2],
                line_tail_ns: of[3],
                cores: CORES_LIMIT,
                round_cores: 1,
                actors,
            },
            decisions,
        })
    }

    fn from_side() -> impl Strategy<Value = FromSide> {
        let rows = proptest::collection::vec(line(), 0..=ROWS_LIMIT);
        let event = (0..ACTORS_LIMIT, any::<u64>(), what()).prop_map(|(actor, at_ns, what)| Happening {
            actor,
            at_ns,
            what,
        });
        let events = proptest::collection::vec(event, 0..=EVENTS_LIMIT);
        prop_oneof![
            any::<(u32, bool, Option<u64>)>().prop_map(|(version, has_begun, channel)| FromSide::Hello {
                version,
                side: Side::Host,
                has_begun,
                channel,
            }),
            Just(FromSide::Ready),
            proptest::collection::vec(noted(), 0..=ACTORS_LIMIT as usize)
                .prop_map(|records| FromSide::Heard { records }),
            (any::<u64>(), proptest::option::of("[ -~]{0,256}"))
                .prop_map(|(id, error)| FromSide::Answer { id, error }),
            (rows, events, any::<u64>()).prop_map(|(rows, events, requests)| FromSide::Report {
                rows,
                events,
                counts: Counts {
                    requests,
                    ..Counts::default()
                },
                decided: None,
            }),
            decided().prop_map(|decided| FromSide::Report {
                rows: Vec::new(),
                events: Vec::new(),
                counts: Counts::default(),
                decided: Some(Box::new(decided)),
            }),
        ]
    }

    fn to_side() -> impl Strategy<Value = ToSide> {
        let begin = prop_oneof![
            Just(Begin::Here),
            Just(Begin::Away),
            (record(), record()).prop_map(|(own, peer)| Begin::Again { own, peer }),
        ];
        prop_oneof![
            (1..=64_u16, any::<[u64; 3]>(), 0..ACTORS_LIMIT, any::<u32>()).prop_map(
                |(cores, of, entry, hysteresis_thousandths)| ToSide::Settings(Settings {
                    policy: PolicyName::Hybrid,
                    cores,
                    queues: Queues::PerCore,
                    quantum_ns: of[0],
                    tail_threshold_ns: of[1],
                    hysteresis_thousandths,
                    rest_ns: of[2],
                    entry,
                    routes: vec![(cores, entry)],
                    incarnation: cores.into(),
                })
            ),
            (0..ACTORS_LIMIT, "[a-z]{1,64}", any::<[u32; 2]>(), begin).prop_map(
                |(actor, kind, limits, begin)| ToSide::Actor {
                    declaration: Declaration {
                        actor,
                        kind,
                        mailbox_limit: limits[0],
                        held_limit: limits[1],
                    },
                    begin,
                }
            ),
            any::<[u64; 3]>().prop_map(|of| ToSide::Attach {
                number: of[2],
                latency_ns: of[0],
                bytes_per_second: of[1]
            }),
            Just(ToSide::Begin),
            proptest::collection::vec(noted(), 0..=ACTORS_LIMIT as usize)
                .prop_map(|records| ToSide::PeerEnded { records }),
            (any::<u64>(), 0..ACTORS_LIMIT).prop_map(|(id, actor)| ToSide::Command {
                id,
                actor,
                what: Command::Pause
            }),
        ]
    }

    /// A message that is written is read as it was, and what is left of it after a change is read or refused.
    fn comes_through<T: Said + PartialEq + std::fmt::Debug>(said: &T, (at, to): (usize, u8)) {
        let mut bytes = write(said).unwrap();
        assert_eq!(&read::<T>(&bytes).unwrap(), said);
        let at = at % bytes.len();
        bytes[at] = to;
        if let Ok(changed) = read::<T>(&bytes) {
            changed.check().unwrap();
        }
        assert!(read::<T>(&bytes[..at]).is_err());
    }

    proptest! {
        #[test]
        fn what_a_side_says_is_read_as_it_was_said(said in from_side(), change in any::<(usize, u8)>()) {
            comes_through(&said, change);
        }

        #[test]
        fn what_inco_says_is_read_as_it_was_said(said in to_side(), change in any::<(usize, u8)>()) {
            comes_through(&said, change);
        }
    }

    #[test]
    fn what_is_beyond_a_limit_is_refused() {
        let row = |actor| Line {
            actor,
            ..Line::default()
        };
        let report = |rows: Vec<Line>| FromSide::Report {
            rows,
            events: Vec::new(),
            counts: Counts::default(),
            decided: None,
        };
        let decided = |more: fn(&mut Decided)| {
            let mut decided = Decided {
                at: Nanos(1),
                case: Case {
                    tail_threshold_ns: 0,
                    returns_below_ns: 0,
                    line_tail_ns: 0,
                    cores: 2,
                    round_cores: 0,
                    actors: Vec::new(),
                },
                decisions: vec![Decision::Core(CoreId(1), actor_scheduling::Group::Drr)],
            };
            more(&mut decided);
            FromSide::Report {
                rows: Vec::new(),
                events: Vec::new(),
                counts: Counts::default(),
                decided: Some(Box::new(decided)),
            }
        };
        decided(|_| ()).check().unwrap();
        let refused = [
            decided(|of| of.case.cores = 0),
            decided(|of| of.case.cores = CORES_LIMIT + 1),
            decided(|of| of.decisions = of.decisions.repeat(usize::from(CORES_LIMIT) + 2)),
            decided(|of| of.decisions = vec![Decision::Core(CoreId(2), actor_scheduling::Group::Drr)]),
            report(vec![row(ACTORS_LIMIT)]),
            report(vec![row(0); ROWS_LIMIT + 1]),
            FromSide::Refused {
                reason: "x".repeat(REASON_BYTES + 1),
            },
            FromSide::Heard {
                records: vec![
                    Noted {
                        actor: 0,
                        record: None
                    };
                    ACTORS_LIMIT as usize + 1
                ],
            },
        ];
        for said in refused {
            let bytes = serde_json::to_vec(&said).unwrap();
            assert!(
                matches!(read::<FromSide>(&bytes), Err(Nonsense::Beyond(_))),
                "{said:?}"
            );
            assert!(matches!(write(&said), Err(Nonsense::Beyond(_))));
        }
        let spaces = [b" ".repeat(MESSAGE_BYTES), br#"{"say":"ready"}"#.to_vec()].concat();
        assert!(matches!(read::<FromSide>(&spaces), Err(Nonsense::TooLong(_))));
        let deep = [b"{\"say\":".to_vec(), b"[".repeat(60_000)].concat();
        assert!(matches!(read::<FromSide>(&deep), Err(Nonsense::Unreadable(_))));
    }

    #[test]
    fn the_longest_messages_fit() {
        let line = Line {
            actor: ACTORS_LIMIT - 1,
            phase: Some(Phase::Prepare),
            waiting: u64::MAX,
            held: u64::MAX,
            served: u64::MAX,
            refused: u64::MAX,
            objects: u64::MAX,
            object_bytes: u64::MAX,
            ran_ns: u64::MAX,
            mean_ns: u64::MAX,
            tail_ns: u64::MAX,
            running_ns: u64::MAX,
            ..Line::default()
        };
        let event = Happening {
            actor: ACTORS_LIMIT - 1,
            at_ns: u64::MAX,
            what: What::Failed {
                // Each takes two bytes as it is written.
                reason: reason("\"\n".repeat(REASON_BYTES)).replace(' ', "\\"),
                lost: u64::MAX,
            },
        };
        let report = FromSide::Report {
            rows: vec![line; ROWS_LIMIT],
            events: vec![event; EVENTS_LIMIT],
            counts: Counts::default(),
            decided: None,
        };
        write(&report).unwrap();
    }
}
