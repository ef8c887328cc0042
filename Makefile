# Everything that a developer or a newcomer runs. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Arguments that a user gives: make demo ENGINE=docker ARGS='--quick'
ENGINE ?= oci
SWITCH ?= soft
ARGS ?=

CARGO := scripts/cargo
TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
HOST = $(or $(shell $(CARGO) -vV 2>/dev/null | sed -n 's/^host: //p'),$(shell uname -m)-unknown-linux-gnu)
# DPDK uplinks where DPDK is: looked up when a recipe runs, after the set-up may have installed it.
WITH_DPDK = $(shell pkg-config --exists libdpdk 2>/dev/null && echo --features dpdk)

.PHONY: help setup build nf test test-dpdk test-without-dpdk demo bench deb lint check-aarch64 clean clean-machine

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{ printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  (ENGINE=oci|docker, SWITCH=soft|openflow and ARGS='...' go to make demo, ARGS also to make bench)"

setup: ## install what building, testing and the demo need; says what and why
	@scripts/setup.sh rust build dpdk test api lint deb
	@echo "setup: done"

build: ## release binaries: target/release/inco and, static, target/release/inco-nf
	@scripts/setup.sh rust build dpdk
	@$(MAKE) --no-print-directory binaries

# What `build` does once the set-up is done: a make of its own, so that it sees what was installed.
.PHONY: binaries
binaries:
	$(CARGO) build --release -p inco $(WITH_DPDK)
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --release -p inco-nf --target $(HOST)
	@install -m 755 $(TARGET_DIR)/$(HOST)/release/inco-nf $(TARGET_DIR)/release/inco-nf
	@echo "built: $(TARGET_DIR)/release/inco and $(TARGET_DIR)/release/inco-nf"

test: ## set up, start what must run, and run every test
	@scripts/setup.sh rust build dpdk test api deb docker
	@scripts/dockerd.sh start || echo "test: without Docker; the tests that need it say so and skip" >&2
	@$(MAKE) --no-print-directory test-dpdk test-without-dpdk
	@echo "test: all passed"

# The binary that containers of the tests run: static, in the development profile like the tests themselves. Its folder
# is the one of its target triple, so that it does not replace the one that cargo builds for inco-nf's own tests.
nf:
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build -p inco-nf --target $(HOST)

test-dpdk: nf
	INCO_NF=$(TARGET_DIR)/$(HOST)/debug/inco-nf scripts/test.sh --workspace $(WITH_DPDK)

# Without the feature the soft switch differs; everything else is checked to build. The tests are chosen by their names, not by
# their crate: then cargo uses the libraries that were built for the tests above. Nothing is required: that was tested above.
test-without-dpdk:
	$(CARGO) check --workspace --all-targets
	INCO_REQUIRE= scripts/test.sh --workspace --test switch --test worker --test idle --test ports

demo: ## the whole loop on this machine, live, and a report (ENGINE=oci|docker, SWITCH=soft|openflow, ARGS=--quick)
	@scripts/setup.sh rust build dpdk $(if $(filter docker,$(ENGINE)),docker) $(if $(filter openflow,$(SWITCH)),bench)
	@$(if $(filter docker,$(ENGINE)),scripts/dockerd.sh start)
	@$(MAKE) --no-print-directory binaries
	$(TARGET_DIR)/release/inco demo --engine $(ENGINE) --switch $(SWITCH) $(ARGS)

bench: ## the data plane side by side with its peers (ARGS=--full); needs root for hugepages
	@scripts/setup.sh rust build dpdk bench
	@$(MAKE) --no-print-directory binaries
	$(TARGET_DIR)/release/inco bench steer $(ARGS)

deb: ## a Debian package of the release binaries: target/deb/inco_VERSION_ARCH.deb
	@scripts/setup.sh rust build dpdk deb
	@$(MAKE) --no-print-directory binaries
	packaging/deb.sh $(TARGET_DIR)/release $(TARGET_DIR)/deb

lint: ## formatting and clippy, warnings are errors
	@scripts/setup.sh rust build dpdk lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $(WITH_DPDK) -- -D warnings
	@echo "lint: clean"

check-aarch64: ## cargo check for Arm of everything that needs no library of DPDK
	@scripts/setup.sh rust arm
	@scripts/check-aarch64.sh

clean: ## remove what was built
	rm -rf $(TARGET_DIR) demo-report.html

clean-machine: ## stop the Docker daemon that we started, and remove what was fetched for check-aarch64
	@scripts/dockerd.sh stop
	rm -rf $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/inco
