//! What the checks of an instance and its agent say of it.

use model::{AgentReport, AgentState, BackEnd, HealthCheck, Nanos};

/// The weight of an instance whose agent says nothing of it, in percent.
const FULL: u32 = 100;

/// Whether an instance is fit to take new flows, and how many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitness {
    /// Checks in a row that did not pass, or that passed.
    failed: u32,
    passed: u32,
    /// Since when it fails its checks, and why the last one did not pass.
    failing: Option<(Nanos, String)>,
    /// Since when those who run it say that it does not serve, and in which words.
    not_ready: Option<(Nanos, String)>,
    /// What its agent says, and how long that has an effect.
    state: Option<(AgentState, Nanos)>,
    mode: Option<(AgentState, Nanos)>,
    percent: Option<(u32, Nanos)>,
    /// Its weight, as those who run it say.
    weight: Option<u16>,
    /// When it was back after it could take no flows.
    back_since: Option<Nanos>,
}

impl Fitness {
    /// Since when it fails its checks, and why.
    pub fn failing(&self) -> Option<(Nanos, &str)> {
        let failing = self.failing.as_ref().or(self.not_ready.as_ref());
        failing.map(|(since, why)| (*since, why.as_str()))
    }

    /// Whether its checks alone say so.
    pub(crate) fn fails_checks(&self) -> bool {
        self.failing.is_some()
    }

    /// Takes what those who run it say: that it serves, or why not. True if that is new.
    pub(crate) fn told_ready(&mut self, ready: Result<(), &str>, now: Nanos) -> bool {
        let before = self.not_ready.is_some();
        self.not_ready = match (ready, self.not_ready.take()) {
            (Ok(()), _) => None,
            (Err(_), Some(since)) => Some(since),
            (Err(why), None) => Some((now, why.to_owned())),
        };
        before != self.not_ready.is_some()
    }

    /// Whether it does not serve, as its checks, its agent or those who run it say.
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
            || self.not_ready.is_some()
            || matches!(self.state, Some((AgentState::Down, _)))
    }

    /// Whether its agent wants no new flows.
    pub fn is_withdrawn(&self) -> bool {
        matches!(self.mode, Some((AgentState::Drain | AgentState::Maintenance, _))) || self.percent() == 0
    }

    /// Whether it can take new flows.
    pub fn takes(&self) -> bool {
        !self.is_failing() && !self.is_withdrawn()
    }

    /// Its weight, in percent.
    pub fn percent(&self) -> u32 {
        self.percent.map_or(FULL, |(percent, _)| percent)
    }

    /// Its weight against the other instances of its service.
    pub(crate) fn weight(&self) -> u16 {
        let whole = self.weight.unwrap_or(BackEnd::WEIGHT);
        let part = u32::from(whole) * self.percent() / FULL;
        // What rounds to none is little, and not none.
        part.max(u32::from(self.percent() > 0)) as u16
    }

    /// Takes the weight that those who run it say. True if that is new.
    pub(crate) fn told_weight(&mut self, weight: u16) -> bool {
        let before = self.weight.replace(weight);
        before.unwrap_or(BackEnd::WEIGHT) != weight
    }

    /// When it was back after it could take no flows.
    pub(crate) fn back_since(&self) -> Option<Nanos> {
        self.back_since
    }

    /// In words, where there is something to say.
    pub fn words(&self) -> Option<String> {
        if let Some((_, why)) = self.failing() {
            return Some(format!("failing: {why}"));
        }
        let word = match (self.state, self.mode) {
            (Some((AgentState::Down, _)), _) => "down, as its agent says",
            (_, Some((AgentState::Drain, _))) => "drained by its agent",
            (_, Some((AgentState::Maintenance, _))) => "in maintenance, as its agent says",
            _ if self.percent() < FULL => return Some(format!("{} %, as its agent says", self.percent())),
            _ => return None,
        };
        Some(word.to_owned())
    }

    /// Takes the verdict of a check.
    pub(crate) fn check(&mut self, verdict: &Result<(), String>, of: &HealthCheck, now: Nanos) {
        match verdict {
            Ok(()) => {
                (self.failed, self.passed) = (0, self.passed.saturating_add(1));
                if self.failing.is_some() && self.passed >= of.rise {
                    self.failing = None;
                }
            }
            Err(why) => {
                (self.failed, self.passed) = (self.failed.saturating_add(1), 0);
                if let Some((_, said)) = &mut self.failing {
                    said.clone_from(why);
                } else if self.failed >= of.fall {
                    self.failing = Some((now, why.clone()));
                }
            }
        }
    }

    /// Takes what its agent says, which has an effect until `until`.
    pub(crate) fn agent(&mut self, report: &AgentReport, until: Nanos) {
        if let Some(state) = report.state {
            self.state = Some((state, until));
        }
        if let Some(mode) = report.mode {
            self.mode = Some((mode, until));
        }
        if let Some(percent) = report.percent {
            self.percent = Some((percent, until));
        }
    }

    /// Forgets what its agent said too long ago.
    pub(crate) fn expire(&mut self, now: Nanos) {
        self.state = self.state.filter(|(_, until)| *until > now);
        self.mode = self.mode.filter(|(_, until)| *until > now);
        self.percent = self.percent.filter(|(_, until)| *until > now);
    }

    /// If it fails, it counts as failing from now on.
    pub(crate) fn fails_from(&mut self, now: Nanos) {
        for (since, _) in [&mut self.failing, &mut self.not_ready].into_iter().flatten() {
            *since = now;
        }
    }

    /// It is not checked any more: what was found has no effect.
    pub(crate) fn forget_checks(&mut self) {
        (self.failed, self.passed, self.failing) = (0, 0, None);
    }

    /// Whether its agent has said something that still has an effect.
    pub(crate) fn has_agent(&self) -> bool {
        self.state.is_some() || self.mode.is_some() || self.percent.is_some()
    }

    /// It can take flows again, from now on.
    pub(crate) fn is_back(&mut self, now: Nanos) {
        self.back_since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use model::Probe;

    use super::*;

    const CHECK: HealthCheck = HealthCheck {
        probe: Probe::Tcp(80),
        every: Nanos::from_secs(1),
        timeout: Nanos::from_millis(500),
        fall: 3,
        rise: 2,
        panic: 0.5,
    };

    #[test]
    fn it_fails_after_fall_checks_in_a_row_and_is_back_after_rise() {
        let mut of = Fitness::default();
        let no = || Err("port 80 refuses the connection".to_owned());
        let mut takes = |verdict: Result<(), String>| {
            of.check(&verdict, &CHECK, Nanos(1));
            of.takes()
        };
        assert!(takes(no()) && takes(no()) && takes(Ok(())), "not in a row");
        assert!(takes(no()) && takes(no()) && !takes(no()));
        assert!(!takes(Ok(())) && !takes(no()) && !takes(Ok(())), "not in a row");
        assert!(takes(Ok(())));
    }

    #[test]
    fn what_an_agent_says_has_an_effect_for_a_while() {
        let mut of = Fitness::default();
        let report = |percent, mode| AgentReport {
            state: None,
            mode,
            percent,
        };
        of.agent(&report(Some(75), Some(AgentState::Drain)), Nanos(10));
        assert!(!of.takes() && of.percent() == 75 && of.has_agent());
        // `ready` ends a drain; the weight stays.
        of.agent(&report(None, Some(AgentState::Ready)), Nanos(20));
        assert!(of.takes() && of.percent() == 75);
        of.expire(Nanos(10));
        assert_eq!((of.percent(), of.has_agent()), (100, true));
        of.agent(&report(Some(0), None), Nanos(20));
        assert!(!of.takes(), "0 % is no new flow");
        of.expire(Nanos(20));
        assert!(of.takes() && !of.has_agent());
    }

    #[test]
    fn the_weight_is_what_others_say_times_what_the_agent_says() {
        let mut of = Fitness::default();
        assert_eq!(of.weight(), 256);
        assert!(!of.told_weight(256) && of.told_weight(u16::MAX) && !of.told_weight(u16::MAX));
        assert_eq!(of.weight(), u16::MAX);
        let percent = |percent| AgentReport {
            state: None,
            mode: None,
            percent: Some(percent),
        };
        of.agent(&percent(50), Nanos(10));
        assert_eq!(of.weight(), 32_767);
        of.told_weight(1);
        assert_eq!(of.weight(), 1, "little, and not none");
        of.agent(&percent(0), Nanos(10));
        assert_eq!(of.weight(), 0);
    }
}
