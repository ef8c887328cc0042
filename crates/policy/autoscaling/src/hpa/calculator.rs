//! Computes the replicas proposed by the metrics.

use super::case::{Case, Failure, Instance, Metric, Result, State};

/// The proposal of one metric or of all together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    pub(super) utilization_percent: Option<i64>,
    /// The value compared with the target.
    pub(super) usage: i64,
}

impl Proposal {
    pub(super) const fn of(replicas: i32) -> Proposal {
        Proposal {
            replicas,
            utilization_percent: None,
            usage: 0,
        }
    }
}

/// The highest proposal of all metrics. If some cannot be read, the others may still scale up but not down.
pub(super) fn propose(case: &Case) -> Result<Proposal> {
    let mut best: Option<Proposal> = None;
    let mut first_failure = None;
    for metric in &case.spec.metrics {
        match propose_one(case, metric) {
            Ok(proposal) => {
                if best.as_ref().is_none_or(|best| proposal.replicas > best.replicas) {
                    best = Some(proposal);
                }
            }
            Err(failure) => {
                first_failure.get_or_insert(failure);
            }
        }
    }
    match (best, first_failure) {
        (Some(best), None) => Ok(best),
        (Some(best), Some(_)) if best.replicas >= case.replicas => Ok(best),
        (_, Some(failure)) => Err(failure),
        (None, None) => Err(Failure {
            reason: "InvalidMetricSourceType",
            message: "no metric is configured".to_owned(),
        }),
    }
}

/// The proposal of one metric.
pub(super) fn propose_one(case: &Case, metric: &Metric) -> Result<Proposal> {
    match metric {
        Metric::Utilization { target_percent } => utilization(case, *target_percent),
        Metric::InstancesAverage { target_average } => instances_average(case, *target_average),
        Metric::Value { value, target } => value_for_all(case, *value, *target),
        Metric::AverageValue {
            value,
            target_average,
        } => Ok(value_per_replica(case, *value, *target_average)),
        Metric::Error { message } => Err(Failure {
            reason: "FailedGetExternalMetric",
            message: message.clone(),
        }),
    }
}

/// Usage as a percentage of the requests: a ratio of sums, truncated to whole percent.
fn utilization(case: &Case, target_percent: i64) -> Result<Proposal> {
    let failed = |message: String| Failure {
        reason: "FailedGetResourceMetric",
        message,
    };
    let groups = Groups::of(case, true, "FailedGetResourceMetric")?;
    let request = |instance: &Instance| instance.request.unwrap_or_default();
    if let Some(index) = groups.counted().position(|i| i.request.is_none()) {
        return Err(failed(format!("missing request for cpu in instance {index}")));
    }
    let requests: i128 = groups.ready.iter().map(|i| i128::from(request(i))).sum();
    let usages: i128 = groups
        .ready
        .iter()
        .map(|i| i128::from(i.usage.unwrap_or_default()))
        .sum();
    if requests == 0 {
        return Err(failed("no metrics returned matched known pods".to_owned()));
    }
    let percent = |usages: i128, requests: i128| to_i64(usages * 100 / requests.max(1));
    let utilization = percent(usages, requests);
    let result = |replicas| {
        Ok(Proposal {
            replicas,
            utilization_percent: Some(utilization),
            usage: utilization,
        })
    };
    let ratio = utilization as f64 / target_percent as f64;
    let with_unready = !groups.unready.is_empty() && ratio > 1.0;
    if !with_unready && groups.missing.is_empty() {
        return result(without_missing(case, ratio, groups.ready.len()));
    }
    let (mut usages, mut requests, mut counted) = (usages, requests, groups.ready.len());
    // Missing usage is assumed against the change: 0 when scaling up, 100 % when scaling down.
    let fill = target_percent.max(100);
    for instance in &groups.missing {
        if ratio < 1.0 {
            usages += i128::from(request(instance)) * i128::from(fill) / 100;
        }
        if ratio != 1.0 {
            requests += i128::from(request(instance));
            counted += 1;
        }
    }
    if with_unready {
        requests += groups
            .unready
            .iter()
            .map(|i| i128::from(request(i)))
            .sum::<i128>();
        counted += groups.unready.len();
    }
    let new_ratio = percent(usages, requests) as f64 / target_percent as f64;
    result(with_missing(case, ratio, new_ratio, counted))
}

/// The mean of the samples, truncated to an integer. Readiness does not matter.
fn instances_average(case: &Case, target: i64) -> Result<Proposal> {
    let groups = Groups::of(case, false, "FailedGetPodsMetric")?;
    let sum: i128 = groups
        .ready
        .iter()
        .map(|i| i128::from(i.usage.unwrap_or_default()))
        .sum();
    let mean = |sum: i128, count: usize| to_i64(sum / (count.max(1) as i128));
    let usage = mean(sum, groups.ready.len());
    let result = |replicas| {
        Ok(Proposal {
            replicas,
            utilization_percent: None,
            usage,
        })
    };
    let ratio = usage as f64 / target as f64;
    let with_unready = !groups.unready.is_empty() && ratio > 1.0;
    if !with_unready && groups.missing.is_empty() {
        return result(without_missing(case, ratio, groups.ready.len()));
    }
    let (mut sum, mut counted) = (sum, groups.ready.len());
    if ratio != 1.0 {
        counted += groups.missing.len();
    }
    if ratio < 1.0 {
        sum += i128::from(target) * groups.missing.len() as i128;
    }
    if with_unready {
        counted += groups.unready.len();
    }
    let new_ratio = mean(sum, counted) as f64 / target as f64;
    result(with_missing(case, ratio, new_ratio, counted))
}

/// One value for all: the ready pods times its ratio to the target; from zero, the ratio itself.
fn value_for_all(case: &Case, value: i64, target: i64) -> Result<Proposal> {
    let ratio = value as f64 / target as f64;
    let proposal = |replicas| Proposal {
        replicas,
        utilization_percent: None,
        usage: value,
    };
    if case.replicas == 0 {
        return Ok(proposal(to_count(ratio.ceil())));
    }
    if case.spec.tolerance.holds(ratio) {
        return Ok(proposal(case.replicas));
    }
    let ready = match &case.instances {
        None => case.replicas.max(0) as usize,
        Some(instances) if instances.is_empty() => {
            return Err(Failure {
                reason: "FailedGetObjectMetric",
                message: "unable to calculate ready pods: no pods returned by selector".to_owned(),
            });
        }
        Some(instances) => instances.iter().filter(|i| i.state == State::Ready).count(),
    };
    Ok(proposal(to_count((ratio * ready as f64).ceil())))
}

/// One value shared by all replicas.
fn value_per_replica(case: &Case, value: i64, target: i64) -> Proposal {
    let replicas = f64::from(case.replicas);
    let ratio = value as f64 / (target as f64 * replicas);
    Proposal {
        replicas: if case.spec.tolerance.holds(ratio) {
            case.replicas
        } else {
            to_count((value as f64 / target as f64).ceil())
        },
        utilization_percent: None,
        usage: to_i64((value as f64 / replicas).ceil() as i128),
    }
}

/// All pods are known: the ratio times the ready ones.
fn without_missing(case: &Case, ratio: f64, ready: usize) -> i32 {
    if case.spec.tolerance.holds(ratio) {
        return case.replicas;
    }
    to_count((ratio * ready as f64).ceil())
}

/// Recomputed after filling in missing usage: no change if within tolerance, if the direction reverses, or if
/// the result lies on the other side of the current count.
fn with_missing(case: &Case, ratio: f64, new_ratio: f64, counted: usize) -> i32 {
    let turned = (ratio < 1.0 && new_ratio > 1.0) || (ratio > 1.0 && new_ratio < 1.0);
    if case.spec.tolerance.holds(new_ratio) || turned {
        return case.replicas;
    }
    let replicas = to_count((new_ratio * counted as f64).ceil());
    let against =
        (new_ratio < 1.0 && replicas > case.replicas) || (new_ratio > 1.0 && replicas < case.replicas);
    if against { case.replicas } else { replicas }
}

/// The pods grouped by how they count.
struct Groups<'a> {
    ready: Vec<&'a Instance>,
    unready: Vec<&'a Instance>,
    missing: Vec<&'a Instance>,
}

impl<'a> Groups<'a> {
    fn of(case: &'a Case, readiness_matters: bool, reason: &'static str) -> Result<Groups<'a>> {
        let failed = |message: &str| {
            Err(Failure {
                reason,
                message: message.to_owned(),
            })
        };
        let instances = case.instances.as_deref().unwrap_or_default();
        if case.instances.is_some() && instances.is_empty() {
            return failed("no pods returned by selector while calculating replica count");
        }
        let mut groups = Groups {
            ready: Vec::new(),
            unready: Vec::new(),
            missing: Vec::new(),
        };
        for instance in instances {
            let has_sample = instance.usage.is_some() && instance.state != State::Missing;
            match instance.state {
                State::Terminating | State::Failed => {}
                State::Pending => groups.unready.push(instance),
                _ if !has_sample => groups.missing.push(instance),
                State::Unready if readiness_matters => groups.unready.push(instance),
                _ => groups.ready.push(instance),
            }
        }
        if groups.ready.is_empty() {
            return failed("did not receive metrics for targeted pods (pods might be unready)");
        }
        Ok(groups)
    }

    fn counted(&self) -> impl Iterator<Item = &&'a Instance> {
        self.ready.iter().chain(&self.unready).chain(&self.missing)
    }
}

fn to_count(replicas: f64) -> i32 {
    // `as` saturates; not-a-number becomes 0.
    replicas as i32
}

fn to_i64(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}
