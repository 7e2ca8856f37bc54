# The commands of the README. Needs: a Rust toolchain (see rust-version in Cargo.toml), a C compiler and make;
# `make test` also needs the programs that it runs, see .ci/run.

TARGET := $(or $(CARGO_TARGET_DIR),target)
export WEIR_BIN ?= $(abspath $(TARGET))/release/weir
export WEIR_VENV ?= $(abspath target/venv)

# What `make install` reads; packaging/install.sh explains them.
export BUILD ?= $(abspath $(TARGET))/release
export PREFIX ?= /usr/local
export DESTDIR ?=
NOTICES := $(abspath $(TARGET))/release/third-party-licences.txt

# What `make deb` and `make wheel` write.
export OUT ?= $(abspath $(TARGET))/packages

SCALE ?= small
SCENARIO ?= pool
# What Miri can run: no kernel behind it, no seeded runs of hours.
MIRI := page::state page::id library::pins library::builder \
	$(addprefix policy::,placement admission pool_size tree write_through recompress victims)
# A build that can leave rules out: target/experiments.
EXPERIMENTS := cargo build --profile experiments --features experiments -p weir-cli -p weir-preload -p weir-bench
REQUIREMENTS := tests/programs/requirements.txt
VENV_STAMP := $(WEIR_VENV)/.installed
# What builds the site of the documents, and where; another mdBook 0.5 does as well.
MDBOOK ?= $(WEIR_VENV)/bin/mdbook
SITE ?= $(abspath $(TARGET))/site

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test soak bench record ablate build licences install uninstall deb wheel dist distcheck check tidy unit shim programs venv docs miri fmt clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## work on data larger than the budget and check it, in under a minute
	$(WEIR_BIN) demo

test: ## run every suite; the last line counts them
	cargo run -q -p xtask -- test

soak: ## the suites that take hours: all programs at full size, in all modes (SUITES=name ...)
	cargo run -q -p xtask -- soak $(SUITES)

bench: build ## measure against the kernel's own swap (SCENARIO=pool, swap, files, numpy, all, ...)
	cargo build --release -p weir-bench
	$(WEIR_BIN) bench $(SCENARIO) $(ARGS)

record: build ## measure everything (on an idle machine) and write docs/performance.md, charts and the README's table
	cargo build --release -p weir-bench
	$(WEIR_BIN) bench all --record $(TARGET)/record.jsonl $(ARGS)
	$(WEIR_BIN) bench report $(TARGET)/record.jsonl

ablate: ## leave out every rule in turn and measure what that costs; it says how long that takes (ARGS="--quick --only RULE")
	$(EXPERIMENTS)
	$(abspath $(TARGET))/experiments/weir bench ablate --file $(TARGET)/ablation.jsonl \
		--page docs/experiments/ablation.md $(ARGS)

build: $(NOTICES) ## build the release binaries into target/release
	cargo build --release -p weir-cli -p weir-preload -p weir-c

licences: $(NOTICES) ## collect the licences of all that is linked, from the sources of the crates

$(NOTICES): Cargo.lock packaging/licences.sh
	mkdir -p $(@D)
	packaging/licences.sh >$@

install: ## put what `make build` made below PREFIX (/usr/local); DESTDIR= for packages
	packaging/install.sh install

uninstall: ## remove what `make install` put there
	packaging/install.sh uninstall

deb: ## make a Debian package of the build, in target/packages
	packaging/deb.sh

dist: ## make both for others, from a build of its own (target/dist) without this machine's paths
	packaging/dist.sh

distcheck: ## for releases: make both twice, compare, install in a clean Debian; two cold builds
	packaging/distcheck.sh

wheel: ## make a Python wheel of the build, in target/packages
	packaging/wheel.sh

check: ## formatting, lints, repository checks
	cargo run -q -p xtask -- test fmt clippy tidy

tidy: ## repository checks alone
	cargo run -q -p xtask -- tidy

unit: ## unit tests alone: no kernel feature is needed
	cargo run -q -p xtask -- test unit

miri: ## page words and policies under Miri, which finds undefined behaviour; needs a nightly toolchain with miri
	MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=target/miri cargo +nightly miri test -p weir --lib -- $(MIRI)

shim: build ## C programs against the preloaded library
	cargo run -q -p xtask -- shim

programs: build venv ## unmodified real programs (SCALE=small|full, ONLY=name)
	python3 tests/programs/run.py --scale $(SCALE) $(addprefix --only ,$(ONLY))

venv: $(VENV_STAMP) ## the Python packages of the programs suite, in target/venv

$(VENV_STAMP): $(REQUIREMENTS)
	python3 -m venv $(WEIR_VENV)
	$(WEIR_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)
	touch $@

docs: $(filter $(WEIR_VENV)/%,$(MDBOOK)) ## build the site of the documents, in target/site
	python3 docs/site/book.py --mdbook $(MDBOOK) $(SITE)

$(WEIR_VENV)/bin/mdbook: docs/site/requirements.txt
	python3 -m venv $(WEIR_VENV)
	$(WEIR_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $<
	touch $@

fmt: ## format the Rust sources
	cargo fmt --all

clean: ## remove everything that was built
	cargo clean
