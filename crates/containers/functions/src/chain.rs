//! Functions at work, one behind the other.

use std::any::Any;
use std::fmt;

use model::{Nanos, PortBlock, Tuple};
use state_moves::{NotMoved, STATE_BYTES_LIMIT};

use crate::about::About;
use crate::burst::{Burst, Settled};
use crate::configuration::Error;
use crate::function::{Function, Summary};
use crate::library::Compiled;

/// Functions of a chain, at most: the shared page has room for the counters of as many.
pub const STAGES_LIMIT: usize = 8;

/// A function, whatever its type.
pub(crate) trait AnyFunction: Send {
    fn process(&mut self, burst: &mut Burst, now: Nanos);
    fn due(&self) -> Option<Nanos>;
    fn tick(&mut self, burst: &mut Burst, now: Nanos);
    /// Gives the old configuration back; [`None`] if the new one is one of another function.
    fn reload(&mut self, configuration: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>>;
    fn metrics(&self, values: &mut [u64]);
    fn summary(&self) -> Summary;
    fn record(&mut self, since_1970: Nanos, line: &mut String) -> bool;
    fn export(&self, flow: &Tuple, state: &mut [u8], now: Nanos) -> Result<usize, NotMoved>;
    fn import(&mut self, flow: &Tuple, state: &[u8], now: Nanos) -> Result<(), NotMoved>;
    fn forget(&mut self, flow: &Tuple, now: Nanos);
    fn hand_over(&mut self, from: u32, room: &mut [u8], now: Nanos)
    -> Result<(usize, Option<u32>), NotMoved>;
    fn take_over(&mut self, mappings: &[u8], now: Nanos) -> Result<(), NotMoved>;
    fn mappings_in(&mut self, ports: &PortBlock, now: Nanos) -> Option<u32>;
}

impl<F: Function> AnyFunction for F {
    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        Function::process(self, burst, now);
    }

    fn due(&self) -> Option<Nanos> {
        Function::due(self)
    }

    fn tick(&mut self, burst: &mut Burst, now: Nanos) {
        Function::tick(self, burst, now);
    }

    fn reload(&mut self, configuration: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        let mut configuration = configuration.downcast::<Option<F::Configuration>>().ok()?;
        // In the memory of the new one, so that nothing is allocated or freed between bursts.
        let old = Function::reload(self, configuration.take()?);
        *configuration = Some(old);
        Some(configuration)
    }

    fn metrics(&self, values: &mut [u64]) {
        Function::metrics(self, values);
    }

    fn summary(&self) -> Summary {
        Function::summary(self)
    }

    fn record(&mut self, since_1970: Nanos, line: &mut String) -> bool {
        Function::record(self, since_1970, line)
    }

    fn export(&self, flow: &Tuple, state: &mut [u8], now: Nanos) -> Result<usize, NotMoved> {
        Function::export(self, flow, state, now)
    }

    fn import(&mut self, flow: &Tuple, state: &[u8], now: Nanos) -> Result<(), NotMoved> {
        Function::import(self, flow, state, now)
    }

    fn forget(&mut self, flow: &Tuple, now: Nanos) {
        Function::forget(self, flow, now);
    }

    fn hand_over(
        &mut self,
        from: u32,
        room: &mut [u8],
        now: Nanos,
    ) -> Result<(usize, Option<u32>), NotMoved> {
        Function::hand_over(self, from, room, now)
    }

    fn take_over(&mut self, mappings: &[u8], now: Nanos) -> Result<(), NotMoved> {
        Function::take_over(self, mappings, now)
    }

    fn mappings_in(&mut self, ports: &PortBlock, now: Nanos) -> Option<u32> {
        Function::mappings_in(self, ports, now)
    }
}

/// What became of the packets of one function. At any time
/// `packets + originated = forwarded + answered + consumed + dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets that it was given.
    pub packets: u64,
    /// Packets that went on, to the next function or to a port.
    pub forwarded: u64,
    /// Packets that went back as answers.
    pub answered: u64,
    /// Packets that were for the function itself.
    pub consumed: u64,
    /// Packets that it dropped, for any reason.
    pub dropped: u64,
    /// Packets that it made.
    pub originated: u64,
    /// Packets that it wanted to make, and that found no room in the burst.
    pub refused: u64,
    /// Configurations that it has taken since it started.
    pub reloads: u64,
}

/// A function at work, with its totals.
pub struct Stage {
    function: Box<dyn AnyFunction>,
    about: About,
    totals: Totals,
    /// By reason; the last one is for reasons that the function does not have.
    dropped: Box<[u64]>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage")
            .field("about", &self.about)
            .field("totals", &self.totals)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

impl Stage {
    pub(crate) fn new(about: About, function: Box<dyn AnyFunction>) -> Stage {
        Stage {
            function,
            about,
            totals: Totals::default(),
            dropped: vec![0; about.reasons.len() + 1].into_boxed_slice(),
        }
    }

    /// What the function is.
    pub fn about(&self) -> About {
        self.about
    }

    /// What became of its packets.
    pub fn totals(&self) -> Totals {
        Totals {
            dropped: self.dropped.iter().sum(),
            ..self.totals
        }
    }

    /// Packets dropped, in the order of [`About::reasons`].
    pub fn dropped(&self) -> &[u64] {
        &self.dropped[..self.about.reasons.len()]
    }

    /// Writes the values of [`About::metrics`] into `values`, which must be as long.
    pub fn metrics(&self, values: &mut [u64]) {
        self.function.metrics(values);
    }

    /// What the function holds now.
    pub fn summary(&self) -> Summary {
        self.function.summary()
    }

    #[inline]
    fn process(&mut self, position: u8, burst: &mut Burst, now: Nanos) {
        self.totals.packets += burst.len() as u64;
        let refused = burst.refused();
        self.function.process(burst, now);
        self.settle(position, burst, refused);
    }

    #[inline]
    fn settle(&mut self, position: u8, burst: &mut Burst, refused: u64) {
        let Settled {
            forwarded,
            answered,
            consumed,
            originated,
        } = burst.settle(position, &mut self.dropped);
        let totals = &mut self.totals;
        totals.forwarded += forwarded;
        totals.answered += answered;
        totals.consumed += consumed;
        totals.originated += originated;
        totals.refused += burst.refused() - refused;
    }
}

/// Functions one behind the other. Packets from port 0 pass them in order, packets from another port in the opposite
/// order, so that the way back is the same one. With a single port, packets of both directions pass them in order.
///
/// A packet that turns (an answer, or one that goes out where it came in) passes those functions again that it has
/// passed before, in the opposite order: a translation is undone in the answer that was given behind it. One that turns
/// a second time leaves at once.
#[derive(Debug)]
pub struct Chain {
    stages: Vec<Stage>,
}

impl Chain {
    /// A chain of 1 to [`STAGES_LIMIT`] functions.
    ///
    /// # Errors
    /// [`Error::Length`].
    pub fn new(stages: Vec<Stage>) -> Result<Chain, Error> {
        let count = stages.len();
        if !(1..=STAGES_LIMIT).contains(&count) {
            return Err(Error::Length { count });
        }
        Ok(Chain { stages })
    }

    /// The functions, as packets from port 0 pass them.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Gives the received packets to the functions. Those that leave are then in [`Burst::leaving`]. `now` is the
    /// monotonic clock at the burst's start.
    #[inline]
    pub fn process(&mut self, burst: &mut Burst, now: Nanos) {
        self.pass(0, burst, now);
    }

    /// When the next tick is due, if any is.
    #[inline]
    pub fn due(&self) -> Option<Nanos> {
        self.stages.iter().filter_map(|stage| stage.function.due()).min()
    }

    /// Lets a stage whose tick is due do what time requires. Returns whether that was so; then
    /// [`Burst::leaving`] has the packets that leave. `opposite` is the port by which packets leave that come from
    /// port 0.
    pub fn tick(&mut self, stage: usize, burst: &mut Burst, opposite: u8, now: Nanos) -> bool {
        let Some(of) = self.stages.get_mut(stage) else {
            return false;
        };
        if of.function.due().is_none_or(|due| due > now) {
            return false;
        }
        burst.begin(0, opposite);
        let refused = burst.refused();
        of.function.tick(burst, now);
        of.settle(stage as u8, burst, refused);
        self.pass(stage + 1, burst, now);
        true
    }

    /// Puts a configuration in place that [`Entry::compile`](crate::Entry::compile) has built for the function of a
    /// stage. Gives the old one back: to free it may take long, and is better done on another thread.
    ///
    /// # Errors
    /// [`Error::Stage`]: there is no such stage, or the configuration is one of another function.
    pub fn reload(&mut self, stage: usize, compiled: Compiled) -> Result<Compiled, Error> {
        let of = self.stages.get_mut(stage).ok_or(Error::Stage { stage })?;
        let old = of.function.reload(compiled.0).ok_or(Error::Stage { stage })?;
        of.totals.reloads += 1;
        Ok(Compiled(old))
    }

    /// Writes the next record of a function behind `line`, and returns whether there was one: those of the first function
    /// come first. See [`Function::record`].
    pub fn record(&mut self, since_1970: Nanos, line: &mut String) -> bool {
        let mut stages = self.stages.iter_mut();
        stages.any(|stage| stage.function.record(since_1970, line))
    }

    /// Writes what the functions know of a flow into `state`: how many functions there are, then for each the bytes of
    /// its state in two bytes, and the state. Returns how many bytes those are. See [`Function::export`].
    ///
    /// # Errors
    /// That of the first function whose flow stays, or [`NotMoved::TooLong`].
    pub fn export(
        &self,
        flow: &Tuple,
        state: &mut [u8; STATE_BYTES_LIMIT],
        now: Nanos,
    ) -> Result<usize, NotMoved> {
        state[0] = self.stages.len() as u8;
        let mut at = 1;
        for stage in &self.stages {
            let (length, room) = state
                .get_mut(at..)
                .and_then(<[u8]>::split_first_chunk_mut::<2>)
                .ok_or(NotMoved::TooLong)?;
            let most = room.len();
            let written = stage.function.export(flow, room, now)?;
            if written > most {
                return Err(NotMoved::TooLong);
            }
            *length = u16::try_from(written)
                .map_err(|_| NotMoved::TooLong)?
                .to_be_bytes();
            at += 2 + written;
        }
        Ok(at)
    }

    /// Takes a flow over with what [`Chain::export`] of another instance wrote.
    ///
    /// # Errors
    /// [`NotMoved::Malformed`]: it is the state of other functions, or not whole. Else that of the first function that
    /// does not take it; those before it have dropped the flow then.
    pub fn import(&mut self, flow: &Tuple, state: &[u8], now: Nanos) -> Result<(), NotMoved> {
        let (count, state) = state.split_first().ok_or(NotMoved::Malformed)?;
        if usize::from(*count) != self.stages.len() {
            return Err(NotMoved::Malformed);
        }
        let part = |rest: &mut &[u8]| -> Option<usize> {
            let (length, behind) = rest.split_first_chunk::<2>()?;
            let length = usize::from(u16::from_be_bytes(*length));
            *rest = behind.get(length..)?;
            Some(length)
        };
        // All of it first: a function takes nothing of what is not whole.
        let mut rest = state;
        for _ in &self.stages {
            part(&mut rest).ok_or(NotMoved::Malformed)?;
        }
        if !rest.is_empty() {
            return Err(NotMoved::Malformed);
        }
        let mut rest = state;
        for at in 0..self.stages.len() {
            let behind = rest.get(2..).unwrap_or_default();
            let length = part(&mut rest).ok_or(NotMoved::Malformed)?;
            let part = behind.get(..length).ok_or(NotMoved::Malformed)?;
            let taken = self.stages[at].function.import(flow, part, now);
            if let Err(why) = taken {
                self.stages[..at]
                    .iter_mut()
                    .for_each(|stage| stage.function.forget(flow, now));
                return Err(why);
            }
        }
        Ok(())
    }

    /// Drops what the functions know of a flow.
    pub fn forget(&mut self, flow: &Tuple, now: Nanos) {
        for stage in &mut self.stages {
            stage.function.forget(flow, now);
        }
    }

    /// Mappings of the first function that has such: see [`Function::hand_over`].
    ///
    /// # Errors
    /// That of this function; [`NotMoved::Unsupported`] if there is none.
    pub fn hand_over(
        &mut self,
        from: u32,
        room: &mut [u8; STATE_BYTES_LIMIT],
        now: Nanos,
    ) -> Result<(usize, Option<u32>), NotMoved> {
        let mut given = Err(NotMoved::Unsupported);
        for stage in &mut self.stages {
            given = stage.function.hand_over(from, room, now);
            if given != Err(NotMoved::Unsupported) {
                break;
            }
        }
        given.and_then(|(length, next)| match length {
            0..=STATE_BYTES_LIMIT => Ok((length, next)),
            _ => Err(NotMoved::TooLong),
        })
    }

    /// Gives mappings to the first function that has such: see [`Function::take_over`].
    ///
    /// # Errors
    /// That of this function; [`NotMoved::Unsupported`] if there is none.
    pub fn take_over(&mut self, mappings: &[u8], now: Nanos) -> Result<(), NotMoved> {
        let mut taken = Err(NotMoved::Unsupported);
        for stage in &mut self.stages {
            taken = stage.function.take_over(mappings, now);
            if taken != Err(NotMoved::Unsupported) {
                break;
            }
        }
        taken
    }

    /// How many mappings with external ports of that block the functions have; [`None`] if none of them has mappings.
    pub fn mappings_in(&mut self, ports: &PortBlock, now: Nanos) -> Option<u32> {
        let each = self.stages.iter_mut();
        each.filter_map(|stage| stage.function.mappings_in(ports, now))
            .reduce(u32::saturating_add)
    }

    /// The stage at a position on the way of packets from a port.
    #[inline]
    fn at(&mut self, position: usize, is_reverse: bool) -> Option<&mut Stage> {
        let at = if is_reverse {
            self.stages.len().checked_sub(1 + position)?
        } else {
            position
        };
        self.stages.get_mut(at)
    }

    #[inline]
    fn pass(&mut self, first: usize, burst: &mut Burst, now: Nanos) {
        let is_reverse = burst.port() > 0;
        for position in first..self.stages.len() {
            if burst.is_empty() {
                break;
            }
            if let Some(stage) = self.at(position, is_reverse) {
                stage.process(position as u8, burst, now);
            }
        }
        burst.leave();
        if burst.has_turned() {
            self.pass_back(is_reverse, burst, now);
        }
    }

    /// Gives the packets that have turned to the functions on their way back.
    #[cold]
    fn pass_back(&mut self, is_reverse: bool, burst: &mut Burst, now: Nanos) {
        /// Where packets are noted that turn a second time.
        const AGAIN: u8 = u8::MAX;
        burst.turn();
        for position in (0..self.stages.len()).rev() {
            // Those that turned at the function behind this one come here next.
            burst.join(position as u8 + 1);
            if burst.is_empty() {
                continue;
            }
            if let Some(stage) = self.at(position, is_reverse) {
                stage.process(AGAIN, burst, now);
            }
        }
        burst.join(0);
        burst.leave();
        burst.leave_turned();
        burst.turn();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::about::{Metric, Reason};
    use crate::burst::{CAPACITY, RECEIVED_LIMIT, Verdict};
    use crate::function::Setup;
    use crate::library::Entry;

    const SETUP: Setup = Setup {
        instance: 1,
        ports: 2,
        seed: 0,
        external: None,
    };

    /// Writes its mark behind each packet. The first byte of a packet says what else becomes of it, and at which mark.
    struct Marker {
        mark: u8,
        next_tick: Option<Nanos>,
    }

    /// First bytes: the number of the function at which something happens, and what.
    const DROPPED: u8 = 0x10;
    const ANSWERED: u8 = 0x20;
    const CONSUMED: u8 = 0x30;
    const COPIED: u8 = 0x40;
    const COPIED_BACK: u8 = 0x50;

    impl Function for Marker {
        type Configuration = u8;

        fn about() -> About {
            const REASONS: &[Metric] = &[Metric::counter("told", "The packet says so")];
            About {
                name: "marker",
                help: "Writes its mark behind each packet",
                reasons: REASONS,
                metrics: &[],
            }
        }

        fn compile(text: &str, _setup: &Setup) -> Result<u8, Error> {
            text.parse().map_err(|_| Error::whole("a number"))
        }

        fn new(mark: u8, _setup: &Setup) -> Marker {
            Marker {
                mark,
                next_tick: Some(Nanos(u64::from(mark))),
            }
        }

        fn reload(&mut self, mark: u8) -> u8 {
            std::mem::replace(&mut self.mark, mark)
        }

        fn process(&mut self, burst: &mut Burst, _now: Nanos) {
            let mut copies = Vec::new();
            for mut packet in burst.packets() {
                packet.grow_back(1).unwrap()[0] = self.mark;
                let told = packet.frame()[0];
                if told & 0x0f != self.mark {
                    continue;
                }
                match told & 0xf0 {
                    DROPPED => packet.drop(Reason(0)),
                    ANSWERED => packet.answer(),
                    CONSUMED => packet.consume(),
                    kind @ (COPIED | COPIED_BACK) => copies.push(kind),
                    _ => {}
                }
            }
            for kind in copies {
                if let Some(mut copy) = burst.originate(1) {
                    copy.frame_mut()[0] = self.mark;
                    if kind == COPIED_BACK {
                        copy.answer();
                    }
                }
            }
        }

        fn due(&self) -> Option<Nanos> {
            self.next_tick
        }

        fn tick(&mut self, burst: &mut Burst, now: Nanos) {
            self.next_tick = Some(now + Nanos(10));
            if let Some(mut packet) = burst.originate(1) {
                packet.frame_mut()[0] = self.mark;
            }
        }
    }

    fn chain(marks: u8) -> Chain {
        let entry = Entry::of::<Marker>();
        let stages = (1..=marks).map(|mark| entry.make(&mark.to_string(), &SETUP).unwrap());
        Chain::new(stages.collect()).unwrap()
    }

    /// The packets that leave: port and bytes.
    fn left(burst: &Burst) -> Vec<(u8, Vec<u8>)> {
        let leaving = burst.leaving().iter();
        leaving
            .map(|of| (of.port(), burst.bytes_of(of).to_vec()))
            .collect()
    }

    fn pass(chain: &mut Chain, ports: (u8, u8), frames: &[&[u8]]) -> Vec<(u8, Vec<u8>)> {
        let mut burst = Burst::new();
        burst.begin(ports.0, ports.1);
        for frame in frames {
            assert!(burst.push(frame));
        }
        chain.process(&mut burst, Nanos::ZERO);
        left(&burst)
    }

    #[test]
    fn the_way_back_is_the_same_one() {
        let mut chain = chain(3);
        assert_eq!(pass(&mut chain, (0, 1), &[&[0]]), [(1, vec![0, 1, 2, 3])]);
        assert_eq!(pass(&mut chain, (1, 0), &[&[0]]), [(0, vec![0, 3, 2, 1])]);
        assert_eq!(pass(&mut chain, (0, 0), &[&[0]]), [(0, vec![0, 1, 2, 3])]);
    }

    #[test]
    fn an_answer_passes_the_functions_before_it_again() {
        let answer = ANSWERED | 2;
        for (ports, marks) in [((0, 1), [1, 2, 1]), ((1, 0), [3, 2, 3]), ((0, 0), [1, 2, 1])] {
            let mut chain = chain(3);
            let expected = [&[answer][..], &marks].concat();
            assert_eq!(
                pass(&mut chain, ports, &[&[0], &[answer]])[1],
                (ports.0, expected)
            );
            assert_eq!(chain.stages()[1].totals().answered, 1);
        }
        // At the first function there is nothing before it.
        assert_eq!(
            pass(&mut chain(1), (0, 1), &[&[ANSWERED | 1]]),
            [(0, vec![ANSWERED | 1, 1])]
        );
    }

    #[test]
    fn dropped_and_consumed_packets_end_where_they_are() {
        let mut chain = chain(3);
        let frames: [&[u8]; 4] = [&[0], &[DROPPED | 2], &[CONSUMED | 1], &[0]];
        let expected = [(1, vec![0, 1, 2, 3]), (1, vec![0, 1, 2, 3])];
        assert_eq!(pass(&mut chain, (0, 1), &frames), expected);
        let totals: Vec<Totals> = chain.stages().iter().map(Stage::totals).collect();
        assert_eq!((totals[0].packets, totals[0].consumed), (4, 1));
        assert_eq!((totals[1].packets, totals[1].dropped), (3, 1));
        assert_eq!(chain.stages()[1].dropped(), [1]);
        assert_eq!((totals[2].packets, totals[2].forwarded), (2, 2));
    }

    #[test]
    fn originated_packets_pass_what_lies_on_their_way() {
        let mut chain = chain(3);
        let leaving = pass(&mut chain, (0, 1), &[&[COPIED | 2], &[COPIED_BACK | 2]]);
        let expected = [
            (1, vec![COPIED | 2, 1, 2, 3]),
            (1, vec![COPIED_BACK | 2, 1, 2, 3]),
            (1, vec![2, 3]),
            (0, vec![2, 1]),
        ];
        assert_eq!(leaving, expected);
        assert_eq!(chain.stages()[1].totals().originated, 2);
    }

    #[test]
    fn ticks_come_when_they_are_due() {
        let mut chain = chain(3);
        let mut burst = Burst::new();
        assert_eq!(chain.due(), Some(Nanos(1)));
        assert!(!chain.tick(1, &mut burst, 1, Nanos(1)), "the second is due at 2");
        assert!(chain.tick(1, &mut burst, 1, Nanos(2)));
        assert_eq!(left(&burst), [(1, vec![2, 3])]);
        assert!(
            chain.tick(2, &mut burst, 0, Nanos(3)) && chain.tick(0, &mut burst, 0, Nanos(3)),
            "with one port"
        );
        assert_eq!(left(&burst), [(0, vec![1, 2, 3])]);
        assert_eq!(chain.due(), Some(Nanos(12)));
        assert!(!chain.tick(3, &mut burst, 1, Nanos(99)));
    }

    #[test]
    fn a_configuration_is_replaced_between_bursts() {
        let mut chain = chain(2);
        let entry = Entry::of::<Marker>();
        chain.reload(1, entry.compile("7", &SETUP).unwrap()).unwrap();
        assert_eq!(pass(&mut chain, (0, 1), &[&[0]]), [(1, vec![0, 1, 7])]);
        assert_eq!(chain.stages()[1].totals().reloads, 1);
        assert!(entry.compile("seven", &SETUP).is_err());
        let other = Entry::of::<crate::Forward>().compile("", &SETUP).unwrap();
        assert_eq!(chain.reload(1, other).unwrap_err(), Error::Stage { stage: 1 });
        let right = entry.compile("7", &SETUP).unwrap();
        assert_eq!(chain.reload(2, right).unwrap_err(), Error::Stage { stage: 2 });
        assert_eq!(chain.stages()[1].totals().reloads, 1);
    }

    fn chain_of(entries: &[(Entry, &str)]) -> Chain {
        let stages = entries
            .iter()
            .map(|(entry, text)| entry.make(text, &SETUP).unwrap());
        Chain::new(stages.collect()).unwrap()
    }

    #[test]
    fn a_chain_moves_the_state_of_all_its_functions_or_none() {
        let flow = Tuple {
            src: [10, 0, 0, 1].into(),
            dst: [192, 0, 2, 1].into(),
            src_port: 1,
            dst_port: 2,
            protocol: 17,
            vlan: 0,
        };
        let frame =
            packet::build::Frame::udp(([10, 0, 0, 1], 1).into(), ([192, 0, 2, 1], 2).into(), &[0; 20]);
        let frame = frame.unwrap().to_vec().unwrap();
        const FIREWALL: &str =
            "default = \"deny\"\nconnections = 8\n[[rule]]\naction = \"allow\"\nsource = \"10.0.0.0/8\"\n";
        const LIMITER: &str = "[[rule]]\nkey = \"flow\"\nrate = \"1pps\"\nburst_packets = 2\n";
        let entries = [
            (Entry::of::<crate::firewall::Firewall>(), FIREWALL),
            (Entry::of::<crate::Limiter>(), LIMITER),
            (Entry::of::<crate::Forward>(), ""),
        ];
        let (mut from, mut to) = (chain_of(&entries), chain_of(&entries));
        assert_eq!(pass(&mut from, (0, 1), &[&frame]).len(), 1);
        let mut state = [0; STATE_BYTES_LIMIT];
        let now = Nanos::ZERO;
        let length = from.export(&flow, &mut state, now).unwrap();
        let whole = &state[..length];
        // Nothing of a state that is cut off, or of other functions, is taken.
        for cut in 0..length {
            assert_eq!(
                to.import(&flow, &whole[..cut], now),
                Err(NotMoved::Malformed),
                "{cut}"
            );
        }
        let longer = [whole, &[0]].concat();
        assert_eq!(to.import(&flow, &longer, now), Err(NotMoved::Malformed));
        let others = chain_of(&entries[..2]).import(&flow, whole, now);
        assert_eq!(others, Err(NotMoved::Malformed));
        assert_eq!(to.import(&flow, whole, now), Ok(()));
        assert_eq!(
            pass(&mut to, (0, 1), &[&frame, &frame]).len(),
            1,
            "of two, one was taken there"
        );
        from.forget(&flow, now);
        assert_eq!(pass(&mut from, (0, 1), &[&frame, &frame]).len(), 2);
        // One function that does not take its part undoes those before it.
        let mut wrong = whole.to_vec();
        let at = 1 + 2 + 3 + 2;
        wrong[at] = 9;
        assert_eq!(to.import(&flow, &wrong, now), Err(NotMoved::Malformed));
        let known = to.export(&flow, &mut state, now).unwrap();
        assert!(known < length, "the firewall has forgotten it");
        // A function whose flows stay keeps those of its chain.
        assert_eq!(
            chain(2).export(&flow, &mut state, now),
            Err(NotMoved::Unsupported)
        );
    }

    #[test]
    fn a_chain_has_limits() {
        assert_eq!(Chain::new(Vec::new()).unwrap_err(), Error::Length { count: 0 });
        let stage = || Entry::of::<Marker>().make("1", &SETUP).unwrap();
        assert!(Chain::new((0..STAGES_LIMIT).map(|_| stage()).collect()).is_ok());
        assert!(Chain::new((0..=STAGES_LIMIT).map(|_| stage()).collect()).is_err());
    }

    proptest! {
        /// Whatever functions do, no packet is lost or counted twice, in any stage and altogether.
        #[test]
        fn every_packet_is_accounted_for(
            stages in 1..=STAGES_LIMIT as u8,
            ports in prop_oneof![Just((0, 0)), Just((0, 1)), Just((1, 0))],
            frames in prop::collection::vec((0..6_u8, 1..=8_u8), 0..RECEIVED_LIMIT),
        ) {
            let mut chain = chain(stages);
            let frames: Vec<[u8; 1]> = frames.into_iter().map(|(what, mark)| [what << 4 | mark]).collect();
            let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
            let leaving = pass(&mut chain, ports, &frames);
            let (mut ended, mut originated) = (0, 0);
            for stage in chain.stages() {
                let of = stage.totals();
                prop_assert_eq!(of.packets + of.originated, of.forwarded + of.answered + of.consumed + of.dropped);
                prop_assert_eq!(of.refused, 0);
                ended += of.consumed + of.dropped;
                originated += of.originated;
            }
            prop_assert_eq!(frames.len() as u64 + originated, leaving.len() as u64 + ended);
            prop_assert!(leaving.iter().all(|(port, _)| *port == ports.0 || *port == ports.1));
        }
    }

    /// A function that makes packets without end fills the burst and no more.
    struct Flood;

    impl Function for Flood {
        type Configuration = ();

        fn about() -> About {
            About {
                name: "flood",
                help: "Drops all, and makes as many as it can",
                reasons: &[],
                metrics: &[],
            }
        }

        fn compile(_text: &str, _setup: &Setup) -> Result<(), Error> {
            Ok(())
        }

        fn new((): (), _setup: &Setup) -> Flood {
            Flood
        }

        fn reload(&mut self, (): ()) {}

        fn process(&mut self, burst: &mut Burst, _now: Nanos) {
            burst
                .packets()
                .for_each(|mut packet| packet.decide(Verdict::Drop(Reason(9))));
            while let Some(mut packet) = burst.originate(crate::FRAME_BYTES_LIMIT) {
                packet.answer();
            }
        }
    }

    #[test]
    fn originated_packets_are_bounded() {
        let entry = Entry::of::<Flood>();
        let stages = (0..STAGES_LIMIT).map(|_| entry.make("", &SETUP).unwrap());
        let mut chain = Chain::new(stages.collect()).unwrap();
        let leaving = pass(&mut chain, (0, 1), &[&[0; 1], &[0; 1]]);
        assert!(leaving.len() <= CAPACITY);
        for stage in chain.stages() {
            let of = stage.totals();
            assert_eq!(
                of.packets + of.originated,
                of.forwarded + of.answered + of.consumed + of.dropped
            );
        }
        let first = chain.stages()[0].totals();
        assert_eq!(
            (first.dropped, first.refused),
            (2, 1),
            "also a reason that is none"
        );
    }
}
