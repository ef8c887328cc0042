# What users and developers run. `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Set by the user: make demo ENGINE=docker ARGS='--quick'
ENGINE ?= oci
SWITCH ?= soft
ARGS ?=
MINUTES ?= 10
SEED ?=

CARGO := scripts/cargo
TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
# DPDK uplinks if DPDK is installed. Evaluated when a recipe runs: the set-up may have installed it.
WITH_DPDK = $(shell pkg-config --exists libdpdk 2>/dev/null && echo --features dpdk)

.PHONY: help setup build nf test test-all test-upgrade promises test-old-kernel test-cluster move-to-arm demo bench soak deb lint check-aarch64 clean clean-machine

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{ printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  (ENGINE=oci|docker|swarm|kubernetes, SWITCH=soft|openflow and ARGS='...' go to make demo, ARGS also to other targets)"

setup: ## install what building, testing and the demo need; prints what and why
	@scripts/setup.sh rust build dpdk test api lint deb
	@echo "setup: done"

build: ## release binaries: target/release/inco and, static, inco-nf and inco-actors beside it
	@scripts/setup.sh rust build dpdk
	@$(MAKE) --no-print-directory binaries

# The rest of `build`: a make of its own, so that it sees what the set-up installed.
.PHONY: binaries
binaries:
	$(CARGO) build --release -p inco -p inco-nf -p inco-actors $(WITH_DPDK)
	@echo "built: inco, inco-nf and inco-actors in $(TARGET_DIR)/release"

test: ## install what is missing, start what must run, and run the tests, one of each kind
	@scripts/setup.sh rust build dpdk test api deb docker
	@scripts/dockerd.sh start || echo "test: no Docker; the tests that need it say so and skip" >&2
	@$(MAKE) --no-print-directory run-tests
	@echo "test: all passed"

test-all: ## make test, with every variant, bench and scenario
	@$(MAKE) --no-print-directory test LONG= LONG_SUITES=

# What the tests' containers run, in the development profile (scripts/rustc links it statically): the runner of functions,
# the program of actors, and what an author of a function builds: the example in Rust, and the library for functions in C.
# With a test, cargo gives libraries the features that they have in tests, and builds them once.
nf:
	$(CARGO) build --workspace $(WITH_DPDK) --lib --bin inco-nf --bin inco-actors --bin function-rust --test guard

# Suites by the names of their tests. The one that mostly waits, for containers and traffic; each test has its turn.
WAITING := end_to_end
# What measures, or has the whole machine to itself, runs when nothing else does.
QUIET := idle forward package
# Without DPDK the soft switch lacks a kind of memory, and is otherwise the same code: its smallest suites show that; `make
# lint` checks that the rest builds. Chosen by name, not by crate: cargo reuses the libraries of the tests with DPDK. What
# INCO_REQUIRE names was tested with them, so nothing that they skip counts as not checked.
WITHOUT_DPDK := worker ports
QUIET_WITHOUT_DPDK := idle
SUITES := $(sort $(notdir $(patsubst %.rs,%,$(wildcard crates/*/*/tests/*.rs)) \
    $(patsubst %/main.rs,%,$(wildcard crates/*/*/tests/*/main.rs))))
# What only computes: it waits for nothing and measures no time, so it has what the waiting one leaves of the CPUs.
COMPUTING := agreement allocation allocations analytics behaviour busy captures classifier cluster corpora cost fits fuzz \
    index_interleavings instructions interleavings laws layers layout lists model modules oracle packets place_keys \
    placement_sweep problems quotas recorded reference reload round_trip routes runs scenarios session shapes simulation \
    steps store sweep transactions
# Each of these takes more than a minute of CPU time. In `make test-all`.
LONG_SUITES := scenarios sweep
# What `make test-all` has beside that, by parts of the names of end-to-end tests. First variants of tests that `make test` has:
# with Docker, whose driver has its own suite; with another kind of port or driver.
LONG := _docker on_interfaces on_an_interface with_one_arm the_same_with_an_edge upgrade_openflow kill_9_of_inco_soft \
    that_inco_was_away
# Benches and demos, of which `make test` has one each, and what shows a saving by minutes of load.
LONG += the_bench_of_balancers the_bench_of_a_function the_bench_of_a_hop the_bench_of_a_signal the_bench_of_the_driver \
    the_bench_of_paths the_bench_of_downloads the_bench_reports hybrid_is_compared every_balancer demo::overload \
    the_actors_demo reactions_are_measured the_cluster_demo what_a_card_saves is_measured_beside the_goal_cpu \
    observing_64 throughput_follows the_manager_wakes load_fills_the_card
# Faults whose notice alone takes long. `make soak` has them at random, and `make test-cluster` those of a swarm.
LONG += soak::a_minute swarm:: the_checkers_pass_over the_end_of_the_side openflow_host:: a_switch_that_is_killed \
    an_instance_that_hangs_after_kill_9 an_instance_that_hangs_is_noticed_and_leaves an_instance_that_is_killed_leaves \
    a_kill_9_while_a_launcher a_place_that_is_lost what_systemd_stops_goes_on what_systemd_stops_waits_and \
    eight_instances_translate the_dns_example clients_through_a_translator replaced_by_a_server \
    what_is_not_configured an_instance_waits_for_a_port
# The longest of what is left. They run beside the rest, but for floods, which take all that there is.
LONGEST := driver switch
# What one of the two runs filters, the other one has: nothing is left out.
ALL_OF_IT := | sed 's/; [0-9]* filtered out//'
# Suites of which most tests wait for an engine, an API server or a browser. They run beside the rest, many at a time.
PATIENT := api_server conformance crash fake page_in_browser real
OTHERS := $(filter-out $(WAITING) $(COMPUTING) $(QUIET) $(LONGEST) $(PATIENT),$(SUITES))
named = $(addprefix --test ,$(1))
TEST = INCO_NF=$(TARGET_DIR)/debug/inco-nf $(CARGO) test --no-fail-fast --workspace

# All is built before anything runs. What only computes is in the idle class, and has the CPUs when nobody else wants them:
# tests that wait for real containers are late where others compute. Where the kernel groups sessions, it weighs
# the session beside a container, whatever the class of its threads is; and a container waits for a CPU for up to a second
# while the session is given what it had too little of. So sessions are not grouped while tests run, where that may be
# changed. After a failure all goes on, and fails.
AUTOGROUP := /proc/sys/kernel/sched_autogroup_enabled
.PHONY: build-tests run-tests computing-tests waiting-tests other-tests quiet-tests
build-tests: nf
	$(TEST) $(WITH_DPDK) --lib --bins --tests --no-run
	$(TEST) $(call named,$(WITHOUT_DPDK) $(QUIET_WITHOUT_DPDK)) --no-run

run-tests: build-tests
	@failed=0; log=$$(mktemp); grouped=$$(cat $(AUTOGROUP) 2>/dev/null); \
	{ [ "$$grouped" != 1 ] || echo 0 >$(AUTOGROUP); } 2>/dev/null || true; \
	setsid sh -c 'echo 19 >/proc/self/autogroup; exec chrt --idle 0 $(MAKE) --no-print-directory computing-tests' \
	    >$$log 2>&1 & computing=$$!; \
	trap "kill -- -$$computing 2>/dev/null; rm -f $$log; \
	    { [ \"$$grouped\" != 1 ] || echo 1 >$(AUTOGROUP); } 2>/dev/null" EXIT; \
	trap 'exit 130' INT TERM; \
	$(MAKE) --no-print-directory waiting-tests || failed=1; \
	$(MAKE) --no-print-directory other-tests || failed=1; \
	wait $$computing || failed=1; \
	cat $$log; \
	$(MAKE) --no-print-directory quiet-tests || failed=1; \
	exit $$failed

# cargo has no use for make's jobs.
computing-tests waiting-tests other-tests quiet-tests: export MAKEFLAGS :=

computing-tests:
	@failed=0; \
	$(TEST) $(WITH_DPDK) --lib --bins $(call named,$(filter-out $(LONG_SUITES),$(COMPUTING))) || failed=1; \
	$(TEST) $(WITH_DPDK) --doc || failed=1; \
	exit $$failed

other-tests:
	@failed=0; logs=$$(mktemp -d); set -o pipefail; \
	{ $(TEST) $(WITH_DPDK) $(call named,$(LONGEST)) -- --skip flood:: 2>&1 $(ALL_OF_IT) >$$logs/longest; } & longest=$$!; \
	{ RUST_TEST_THREADS=8 $(TEST) $(WITH_DPDK) $(call named,$(PATIENT)) $(if $(LONG),-- --skip swarm::) \
	    >$$logs/patient 2>&1; } & patient=$$!; \
	trap "kill $$longest $$patient 2>/dev/null; rm -r $$logs" EXIT; \
	trap 'exit 130' INT TERM; \
	$(TEST) $(WITH_DPDK) $(call named,$(OTHERS)) || failed=1; \
	INCO_REQUIRE= INCO_SKIPPED= $(TEST) $(call named,$(WITHOUT_DPDK)) || failed=1; \
	wait $$patient || failed=1; \
	cat $$logs/patient; \
	wait $$longest || failed=1; \
	cat $$logs/longest; \
	exit $$failed

# Most of its threads wait for their turn.
waiting-tests:
	RUST_TEST_THREADS=32 $(TEST) $(WITH_DPDK) $(call named,$(WAITING)) -- $(addprefix --skip ,$(LONG))

quiet-tests:
	@failed=0; set -o pipefail; \
	$(TEST) $(WITH_DPDK) $(call named,$(QUIET)) || failed=1; \
	$(TEST) $(WITH_DPDK) $(call named,$(LONGEST)) -- flood:: 2>&1 $(ALL_OF_IT) || failed=1; \
	INCO_REQUIRE= INCO_SKIPPED= $(TEST) $(call named,$(QUIET_WITHOUT_DPDK)) || failed=1; \
	exit $$failed

# The tests of docs/promises.md that are shorter in `make test`, by parts of their names: those of end_to_end.
STATED_SIZE := engine_away gaps many_requests_and_streams_cost_the_data_plane bursts_of_new_flows_keep \
    a_switch_that_is_killed testpmd no_flow_notices_a_kill_9_while_a_launcher_replaces_another no_request_fails_while \
    services:: the_demo_does_the_same every_balancer_of_the_web_demo the_cluster_demo clients:: hybrid:: edges:: \
    nothing_is_broken machines_behind_tunnels pods_scale_and_the_api_server_is_away demo::overload \
    that_inco_was_away no_flow_notices_an_upgrade hybrid_is_compared replies:: the_end_of_the_side the_bench_of_isolation
PAUSES := $(TARGET_DIR)/pauses.json
promises: ## the tests of docs/promises.md at their stated size: an hour; root, and an idle machine
	@scripts/setup.sh rust build dpdk test docker
	@scripts/setup.sh browser || true
	@scripts/dockerd.sh start || echo "promises: no Docker; the test that needs it says so and skips" >&2
	@$(MAKE) --no-print-directory nf
	@failed=0; INCO_SKIPPED=$$(mktemp); export INCO_SKIPPED; \
	INCO_FULL_LENGTH=1 $(TEST) $(WITH_DPDK) --test end_to_end -- --nocapture --test-threads 1 $(STATED_SIZE) || failed=1; \
	INCO_FULL_LENGTH=1 $(TEST) -p soft-switch $(WITH_DPDK) --test switch -- --nocapture --test-threads 1 fast:: edges:: tunnels:: || failed=1; \
	INCO_FULL_LENGTH=1 $(TEST) -p openflow-switch $(WITH_DPDK) --test real -- --nocapture --test-threads 1 path_changes:: || failed=1; \
	INCO_FULL_LENGTH=1 $(TEST) $(WITH_DPDK) --test page_in_browser || failed=1; \
	INCO_FULL_LENGTH=1 $(TEST) -p ebpf-switch $(WITH_DPDK) --test driver -- --nocapture --test-threads 1 many:: tunnel_costs:: || failed=1; \
	$(MAKE) --no-print-directory binaries && $(TARGET_DIR)/release/inco bench restart --rounds 5 --json >$(PAUSES) && \
	    jq -e 'all(.pause_ms < .limit_ms)' $(PAUSES) || { failed=1; cat $(PAUSES); }; \
	INCO_PROGRAM=$(TARGET_DIR)/release/inco $(TEST) $(WITH_DPDK) --test end_to_end -- --nocapture --test-threads 1 \
	    observing_64_instances || failed=1; \
	sort -u $$INCO_SKIPPED | sed 's/^/promises: NOT CHECKED: /'; rm -f $$INCO_SKIPPED; \
	exit $$failed

EARLIER ?= 1cf79517
test-upgrade: nf ## the tests in which an inco of an earlier commit (EARLIER=) is upgraded and restarted; builds that commit; root
	scripts/earlier.sh $(EARLIER) $(TARGET_DIR)/earlier
	INCO_EARLIER=$(TARGET_DIR)/earlier/inco INCO_REQUIRE=earlier,oci,root \
	    $(TEST) $(WITH_DPDK) --test end_to_end -- earlier_inco

test-old-kernel: ## the tests of the driver ebpf on Linux 6.1, in a virtual machine (ARGS=names of tests); root, Debian
	@scripts/setup.sh rust build dpdk old-kernel
	@scripts/old-kernel.sh $(ARGS)

test-cluster: ## instances from and in Kubernetes, and in a swarm of Docker's: tests against a real cluster, which it builds (Go 1.25), and three real nodes; root
	@scripts/setup.sh rust build dpdk test docker kubernetes
	@scripts/kubernetes.sh build etcd kube-apiserver kube-scheduler kube-controller-manager kubelet
	@scripts/dockerd.sh start
	@$(MAKE) --no-print-directory nf
	INCO_REQUIRE=kubernetes,kubernetes-node,root,servers RUST_TEST_THREADS=2 \
	    $(TEST) $(WITH_DPDK) --test api_server --test conformance --test kubernetes_faults --test end_to_end -- kubernetes
	INCO_REQUIRE=swarm,root,servers RUST_TEST_THREADS=2 \
	    $(TEST) $(WITH_DPDK) --test conformance --test end_to_end -- swarm

move-to-arm: ## an actor in WebAssembly moves to an emulated Arm processor and back, with equal state; Debian
	@scripts/move-to-arm.sh $(ARGS)

# The demo's own build: neither optimised for speed nor with debug information, without DPDK, the benches, the
# simulator and `inco top`.
demo: ## the whole loop on this machine, live, and a report (ENGINE=, SWITCH=, ARGS=--quick, --all, --actors or --cluster)
	@scripts/setup.sh rust build $(if $(filter docker swarm,$(ENGINE)),docker) $(if $(filter openflow,$(SWITCH)),bench) $(if $(filter --web --cluster,$(ARGS)),web) $(if $(filter kubernetes,$(ENGINE)),kubernetes)
	@$(if $(filter docker,$(ENGINE)),scripts/dockerd.sh start)
	@$(if $(filter kubernetes,$(ENGINE)),scripts/kubernetes.sh build etcd kube-apiserver kube-scheduler kube-controller-manager kubelet)
	@echo "demo: building what it needs, in target/demo; on two cores this takes some minutes the first time"
	$(CARGO) build --profile demo -p inco -p inco-nf --no-default-features \
	    $(if $(filter docker swarm,$(ENGINE)),--features inco/docker) $(if $(filter kubernetes,$(ENGINE)),--features inco/kubernetes) \
	    $(if $(filter --actors,$(ARGS)),-p inco-actors --features inco-actors/wasm)
	$(TARGET_DIR)/demo/inco demo --engine $(ENGINE) --switch $(SWITCH) $(ARGS)

bench: ## inco bench steer: the switch beside testpmd and OVS-DPDK (ARGS=--full); root for hugepages
	@scripts/setup.sh rust build dpdk bench
	@$(MAKE) --no-print-directory binaries
	$(TARGET_DIR)/release/inco bench steer $(ARGS)

soak: ## inco soak: minutes of random faults, each checked (MINUTES=10, SEED=, ARGS=--json; ACTORS=1: those of actors); root
	@scripts/setup.sh rust build dpdk bench docker
	@$(MAKE) --no-print-directory binaries
	$(TARGET_DIR)/release/inco soak $(if $(ACTORS),actors --duration $(MINUTES)m,--minutes $(MINUTES)) \
	    $(if $(SEED),--seed $(SEED)) $(ARGS)

deb: ## build a Debian package: target/deb/inco_VERSION_ARCH.deb
	@scripts/setup.sh rust build dpdk deb
	@$(MAKE) --no-print-directory binaries
	packaging/deb.sh $(TARGET_DIR)/release $(TARGET_DIR)/deb

lint: ## formatting and clippy; warnings are errors
	@scripts/setup.sh rust build dpdk lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(WITH_DPDK) -- -D warnings
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p inco --no-default-features -- -D warnings
	@echo "lint: clean"

check-aarch64: ## cargo check for Arm of what needs no DPDK library
	@scripts/setup.sh rust arm
	@scripts/check-aarch64.sh

clean: ## remove what was built
	rm -rf $(TARGET_DIR) demo-report.html

clean-machine: ## stop the Docker daemon that we started; remove what check-aarch64 fetched
	@scripts/dockerd.sh stop
	rm -rf $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/inco
