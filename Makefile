# The one entry point. `make help` lists the targets.
#
# Everything here is a thin call: what a target does stands in ci/ and can be run by hand.

PREFIX  ?= /usr/local
DESTDIR ?=
CARGO   ?= cargo
# In CI a lock file that does not fit is a failure; while working cargo may bring it up to date.
LOCKED  := $(if $(filter true,$(CI)),--locked)

# An absolute path, because recipes and the programs they start change directory.
TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
SKEP       := $(TARGET_DIR)/release/skep
ACCEPT     := $(abspath ../shared/accept)

.DEFAULT_GOAL := build
.PHONY: help build test test-long lint deny fmt bench budget accept man completions install install-units uninstall clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## release build: target/release/skep (the default; linked by ci/rustc)
	$(CARGO) build --release --package skep-cli --bin skep $(LOCKED)

test: ## all tests of a normal run; as root it installs the Debian packages they need
	ci/provision tests
	ci/test

test-long: ## the long run: more random cases, more cycles, and the replayed mutations
	ci/provision tests
	ci/test --long
	ci/replay-mutations

lint: ## formatting, clippy, licences, layers, claims
	ci/lint

deny: ## advisories, licences, bans and sources by cargo-deny (brings it if it is missing: minutes to build)
	@$(CARGO) deny --version >/dev/null 2>&1 || nice $(CARGO) install --locked cargo-deny
	$(CARGO) deny --log-level error check

fmt: ## format the sources
	$(CARGO) fmt --all

bench: build ## measure against peers, print tables (ARGS=--write keeps them, with charts, in docs/bench)
	ci/provision bench
	benches/run.py --skep $(SKEP) $(ARGS)

budget: build ## count what the hot paths do against benches/budget.toml; try what only the release build can get wrong
	ci/check-budget --skep $(SKEP)
	ci/check-static $(SKEP)

accept: build ## the acceptance checks beside the project, where they exist
	@if [ -x $(ACCEPT)/run ]; then SKEP=$(SKEP) $(ACCEPT)/run; \
	else echo "make accept: there is no $(ACCEPT)/run here"; exit 1; fi

man: build ## man pages into target/man
	rm -rf $(TARGET_DIR)/man && mkdir -p $(TARGET_DIR)/man
	$(SKEP) man --dir $(TARGET_DIR)/man

completions: build ## shell completions into target/completions
	rm -rf $(TARGET_DIR)/completions && mkdir -p $(TARGET_DIR)/completions
	$(SKEP) completion bash > $(TARGET_DIR)/completions/skep.bash
	$(SKEP) completion zsh  > $(TARGET_DIR)/completions/_skep
	$(SKEP) completion fish > $(TARGET_DIR)/completions/skep.fish

install: build man completions install-units ## binary, man pages, completions and units below PREFIX (DESTDIR is honoured)
	install -d $(DESTDIR)$(PREFIX)/bin
	ci/in-large-pieces $(SKEP) $(DESTDIR)$(PREFIX)/bin/skep
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 $(TARGET_DIR)/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -D -m 644 $(TARGET_DIR)/completions/skep.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/skep
	install -D -m 644 $(TARGET_DIR)/completions/_skep $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_skep
	install -D -m 644 $(TARGET_DIR)/completions/skep.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/skep.fish

# systemd looks below /usr/local/lib and /usr/lib; what is installed is what the units start.
install-units:
	for kind in system user; do for unit in skep.service skep.socket; do \
	  install -D -m 644 resources/systemd/$$kind/$$unit $(DESTDIR)$(PREFIX)/lib/systemd/$$kind/$$unit && \
	  sed -i 's|^ExecStart=/usr/bin/|ExecStart=$(PREFIX)/bin/|' $(DESTDIR)$(PREFIX)/lib/systemd/$$kind/$$unit || exit 1; \
	done; done

uninstall: ## remove what install put below PREFIX; state directories are left alone
	rm -f $(DESTDIR)$(PREFIX)/bin/skep
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/skep.1 $(DESTDIR)$(PREFIX)/share/man/man1/skep-*.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/skep
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_skep
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/skep.fish
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/system/skep.service $(DESTDIR)$(PREFIX)/lib/systemd/system/skep.socket
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/user/skep.service $(DESTDIR)$(PREFIX)/lib/systemd/user/skep.socket

clean: ## remove what was built
	$(CARGO) clean
