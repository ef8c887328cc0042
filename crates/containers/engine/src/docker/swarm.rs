//! Docker's Swarm: each container is the one replica of a service of its own, because a service that shrinks chooses
//! itself which replica ends. What runs on this node is then looked after as any container of Docker's.

use bollard::models::{
    Limit, MountTmpfsOptions, Service as SwarmService, ServiceSpec, ServiceSpecMode,
    ServiceSpecModeReplicated, Task, TaskSpec, TaskSpecContainerSpec, TaskSpecLogDriver, TaskSpecPlacement,
    TaskSpecResources, TaskSpecRestartPolicy, TaskSpecRestartPolicyConditionEnum, TaskState,
};
use bollard::query_parameters::{ListServicesOptions, ListTasksOptions};

use super::*;

/// How often the manager is asked what became of a task that begins.
const TASK_EVERY: Duration = Duration::from_millis(10);
/// Nanoseconds of CPU time for each microsecond.
const NANOS: u64 = 1_000;
/// Bytes of `/tmp` and `/run` of a container.
const TMPFS: [(&str, i64, i64); 2] = [("/tmp", 16 << 20, 0o1777), ("/run", 64 << 20, 0o755)];

impl super::Service {
    /// The node that it is, if it is a manager of a swarm.
    ///
    /// # Errors
    /// It is none.
    pub(super) async fn node_of(docker: &Docker) -> Result<String, EngineError> {
        let info = timeout(CONNECT_LIMIT, docker.info()).await;
        let info = info
            .map_err(|_| silent(CONNECT_LIMIT))?
            .map_err(|error| unavailable(&error))?;
        let swarm = info.swarm.unwrap_or_default();
        match swarm.node_id.filter(|id| !id.is_empty()) {
            Some(id) if swarm.control_available == Some(true) => Ok(id),
            _ => Err(EngineError::Unavailable {
                reason:
                    "this Docker is no manager of a swarm: run `docker swarm init`, or `docker node promote`"
                        .to_owned(),
            }),
        }
    }

    /// Makes a service with one task, and waits until that runs. Nothing is left of one that does not.
    pub(super) async fn make_task(
        &self,
        node: &str,
        spec: &ContainerSpec,
        given: &Given,
        image: Option<&Image>,
        limit: Duration,
    ) -> Result<(u32, Nanos), EngineError> {
        if !given.set_up().is_empty() || !given.devices.is_empty() {
            return Err(EngineError::NoFunction {
                what: "Swarm connects containers to its own networks, and takes neither ports nor devices"
                    .to_owned(),
                write: "write port = \"memif\", or driver = \"docker\" in [engine]".to_owned(),
            });
        }
        if spec.cpuset.is_some() {
            return Err(EngineError::BadSpec {
                what: "a set of CPUs",
                reason: "Swarm does not know it".to_owned(),
            });
        }
        let name = &spec.name;
        let body = body(spec, given, image, self.is_podman, String::new());
        let asked = self.docker.create_service(task_of(spec, body, node), None);
        match self.ask("create", name, limit, asked).await {
            Ok(_) => {}
            Err(EngineError::Refused { reason, .. }) if reason.contains("already exists") => {
                return Err(EngineError::NameTaken { name: name.clone() });
            }
            Err(error @ EngineError::Timeout { .. }) => {
                self.discard_service(name).await;
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        let started = match timeout(limit, self.begun(spec)).await {
            Ok(begun) => begun,
            Err(_) => Err(EngineError::Timeout {
                verb: "create",
                name: name.clone(),
                after: Nanos(limit.as_nanos() as u64),
            }),
        };
        let made = match started {
            Ok(id) => {
                self.ids.borrow_mut().insert(name.clone(), id);
                self.take_up(spec).await
            }
            Err(error) => Err(error),
        };
        if made.is_err() {
            self.discard_service(name).await;
        }
        made
    }

    /// The id of the container, once its program was started.
    async fn begun(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        let name = &spec.name;
        loop {
            if let Some(task) = self.task(name).await? {
                let status = task.status.unwrap_or_default();
                let id = status.container_status.and_then(|of| of.container_id);
                let reason = status.err.unwrap_or_default();
                match (status.state, id.filter(|id| !id.is_empty())) {
                    (Some(TaskState::RUNNING | TaskState::COMPLETE), Some(id)) => return Ok(id),
                    // Its program was started, and has ended.
                    (Some(TaskState::FAILED), Some(id)) if reason.starts_with("task: non-zero exit") => {
                        return Ok(id);
                    }
                    (Some(TaskState::FAILED | TaskState::REJECTED | TaskState::ORPHANED), _)
                        if reason.contains("o such image") =>
                    {
                        return Err(EngineError::NotInDocker {
                            image: spec.image.with_tag(),
                        });
                    }
                    (
                        Some(
                            TaskState::FAILED
                            | TaskState::REJECTED
                            | TaskState::ORPHANED
                            | TaskState::SHUTDOWN
                            | TaskState::COMPLETE,
                        ),
                        _,
                    ) => {
                        let name = name.clone();
                        return Err(EngineError::Start { name, reason });
                    }
                    _ => {}
                }
            }
            sleep(TASK_EVERY).await;
        }
    }

    /// The task of a service: it has one, because none is started again.
    async fn task(&self, name: &str) -> Result<Option<Task>, EngineError> {
        let options = ListTasksOptions {
            filters: Some(HashMap::from([("service".to_owned(), vec![name.to_owned()])])),
        };
        let asked = self.docker.list_tasks(Some(options));
        match self.ask("inspect", name, ANSWER, asked).await {
            Ok(tasks) => Ok(tasks.into_iter().next()),
            Err(EngineError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes what a failed create left, as far as the manager answers.
    async fn discard_service(&self, name: &str) {
        let task = timeout(ANSWER, self.task(name))
            .await
            .ok()
            .and_then(Result::ok)
            .flatten();
        let _ = timeout(ANSWER, self.docker.delete_service(name)).await;
        let status = task.and_then(|task| task.status?.container_status?.container_id);
        if let Some(id) = status.filter(|id| !id.is_empty()) {
            self.discard(&id).await;
        }
        self.ids.borrow_mut().remove(name);
    }

    /// Removes a service and its container, which nothing starts again.
    pub(super) async fn remove_service(&self, name: &str) -> Result<(), EngineError> {
        let asked = self.docker.delete_service(name);
        match self.ask("remove", name, ANSWER, asked).await {
            Ok(()) | Err(EngineError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The services with this label as containers: with their names and labels, and the ids of their containers noted.
    pub(super) async fn services(&self, label: &Label) -> Result<Vec<ContainerSummary>, EngineError> {
        let filter = match &label.value {
            Some(value) => format!("{}={value}", label.key),
            None => label.key.clone(),
        };
        let options = ListServicesOptions {
            filters: Some(HashMap::from([("label".to_owned(), vec![filter])])),
            ..ListServicesOptions::default()
        };
        let asked = self.docker.list_services(Some(options));
        let mut summaries = Vec::new();
        for SwarmService {
            spec,
            created_at: created,
            ..
        } in self.ask("list", "the services", LIST_LIMIT, asked).await?
        {
            let Some(ServiceSpec {
                name: Some(name),
                labels,
                ..
            }) = spec
            else {
                continue;
            };
            let task = self.task(&name).await?;
            let id = task.and_then(|task| task.status?.container_status?.container_id);
            let id = id.filter(|id| !id.is_empty());
            let state = match &id {
                Some(id) => self.state_of(id).await?,
                None => ContainerSummaryStateEnum::EXITED,
            };
            if let Some(id) = id {
                self.ids.borrow_mut().insert(name.clone(), id);
            }
            summaries.push(ContainerSummary {
                names: Some(vec![name]),
                labels,
                state: Some(state),
                created: created.and_then(|of| unix_seconds(&of)),
                ..ContainerSummary::default()
            });
        }
        Ok(summaries)
    }

    async fn state_of(&self, id: &str) -> Result<ContainerSummaryStateEnum, EngineError> {
        let asked = self.docker.inspect_container(id, None::<InspectContainerOptions>);
        let state = match self.ask("inspect", id, ANSWER, asked).await {
            Ok(inspected) => inspected.state.unwrap_or_default(),
            Err(EngineError::NotFound { .. }) => return Ok(ContainerSummaryStateEnum::EXITED),
            Err(error) => return Err(error),
        };
        Ok(if state.paused == Some(true) {
            ContainerSummaryStateEnum::PAUSED
        } else if state.running == Some(true) {
            ContainerSummaryStateEnum::RUNNING
        } else {
            ContainerSummaryStateEnum::EXITED
        })
    }
}

/// The service of a container that Docker would be asked for by `body`, on a node.
fn task_of(spec: &ContainerSpec, body: ContainerCreateBody, node: &str) -> ServiceSpec {
    let host = body.host_config.unwrap_or_default();
    let has_tmpfs = host.tmpfs.is_some();
    let tmpfs = TMPFS.into_iter().filter(|_| has_tmpfs);
    let tmpfs = tmpfs.map(|(target, size_bytes, mode)| DockerMount {
        target: Some(target.to_owned()),
        typ: Some(MountType::TMPFS),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(size_bytes),
            mode: Some(mode),
            options: None,
        }),
        ..DockerMount::default()
    });
    let log = host.log_config.unwrap_or_default();
    let of_micros = |micros: u32| u64::from(micros) * NANOS;
    let nano_cpus = spec.cpu.map(|quota| {
        let nanos = of_micros(quota.quota_us).saturating_mul(1_000_000) / u64::from(quota.period_us).max(1);
        i64::try_from(nanos).unwrap_or(i64::MAX)
    });
    let container = TaskSpecContainerSpec {
        image: body.image,
        labels: body.labels.clone(),
        command: body.entrypoint,
        env: body.env,
        dir: body.working_dir,
        user: body.user,
        read_only: host.readonly_rootfs,
        mounts: Some(host.mounts.into_iter().flatten().chain(tmpfs).collect()),
        stop_signal: body.stop_signal,
        capability_add: host.cap_add,
        capability_drop: host.cap_drop,
        ulimits: host.ulimits,
        ..TaskSpecContainerSpec::default()
    };
    ServiceSpec {
        name: Some(spec.name.clone()),
        labels: body.labels,
        mode: Some(ServiceSpecMode {
            replicated: Some(ServiceSpecModeReplicated { replicas: Some(1) }),
            ..ServiceSpecMode::default()
        }),
        task_template: Some(TaskSpec {
            container_spec: Some(container),
            resources: Some(TaskSpecResources {
                limits: Some(Limit {
                    nano_cpus,
                    memory_bytes: host.memory,
                    pids: host.pids_limit,
                }),
                ..TaskSpecResources::default()
            }),
            // inco decides what follows an end.
            restart_policy: Some(TaskSpecRestartPolicy {
                condition: Some(TaskSpecRestartPolicyConditionEnum::NONE),
                ..TaskSpecRestartPolicy::default()
            }),
            placement: Some(TaskSpecPlacement {
                constraints: Some(vec![format!("node.id == {node}")]),
                ..TaskSpecPlacement::default()
            }),
            log_driver: Some(TaskSpecLogDriver {
                name: log.typ,
                options: log.config,
            }),
            ..TaskSpec::default()
        }),
        ..ServiceSpec::default()
    }
}

/// Seconds since 1970 of Docker's time, such as `2026-11-26T23:54:50.123Z`.
fn unix_seconds(time: &str) -> Option<i64> {
    let number = |from: usize, to: usize| time.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hours, minutes, seconds) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // The year begins in March, so that a leap day is its last one.
    let year = if month < 3 { year - 1 } else { year };
    let days_before = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + days_before;
    /// From March of the year 0 to the beginning of 1970.
    const UNTIL_1970: i64 = 719_468;
    Some(((days - UNTIL_1970) * 24 + hours) * 3_600 + minutes * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_docker_are_read() {
        for (time, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00.5Z", Some(951_825_600)),
            ("2026-11-26T23:54:50.123456789Z", Some(1_795_737_290)),
            ("2026", None),
            ("", None),
        ] {
            assert_eq!(unix_seconds(time), seconds, "{time}");
        }
    }
}
