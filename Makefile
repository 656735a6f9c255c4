# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
BIN := $(ROOT)/bin
TOOL := go tool -modfile=$(ROOT)/hack/tools/go.mod

# Directory of etcd, kube-apiserver, kube-controller-manager and kubectl, which some tests use. If you set another directory, make uses the programs in it and
# builds none of these four.
export KUBEBUILDER_ASSETS ?= $(BIN)
# Everything except tests with -race is compiled with the same settings, so that the build cache is shared.
PLAIN := CGO_ENABLED=0 GOFLAGS="$(shell go env GOFLAGS) -trimpath"
# Timeout of the tests of one package.
TIMEOUT ?= 15m
# Flags of make test. make verify runs go vet on all packages; go test would run it on the packages of all imported modules too, which takes long the first time.
TESTFLAGS = -p 4 -count=1 -vet=off -timeout $(TIMEOUT)
# Packages to test: make test PACKAGES=./internal/lifecycle/... The slowest ones come first, so that none of them runs alone at the end.
SLOWEST := ./test/integration ./internal/runtime/host ./test/soak ./internal/controlplane ./internal/runtime/langserver
PACKAGES ?= $(SLOWEST) $(shell go list ./... | grep -vE '/test/(e2e|performance|races|chaos|clocks|cluster|faults|hostile|languageservers)$$')
# Number of chaos cycles: make chaos CYCLES=2000 SEED=7
CYCLES ?= 200
# Additional arguments for berth up: make run UP="--keep"
UP ?=

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

##@ Use
.PHONY: run
run: build apiserver ## Start a control plane, the manager and the samples, and show them until Ctrl-C. Builds gopls, and kubectl if it is not in PATH, meanwhile.
	@hack/run.sh $(BIN) $(UP)

.PHONY: install
install: ## Install berth, kubectl-berth, berth-apiserver, berth-shim, berth-lsp and berth-lsp-pod with go install.
	@$(PLAIN) go install ./cmd/...
	@cd cmd/berth-apiserver && $(PLAIN) go install -ldflags "$(KUBERNETES_VERSION)" .
	@bin=$$(go env GOBIN); bin=$${bin:-$$(go env GOPATH)/bin}; ln -sf berth "$$bin/kubectl-berth"; ln -sf berth "$$bin/kubectl_complete-berth"; echo "installed into $$bin"

##@ Build
PROGRAMS := ./cmd/... ./samples/gohello ./samples/checkmodule

.PHONY: build
build: ## Build berth, kubectl-berth, berth-shim, berth-lsp, berth-lsp-pod and the programs of the samples into bin/.
	@echo "building berth and its helper programs" >&2
	@mkdir -p $(BIN)
	@$(PLAIN) go build -v -o $(BIN)/ $(PROGRAMS) 2>&1 | hack/progress.sh berth "$$(go list -deps $(PROGRAMS) | wc -l)"
	@ln -sf berth $(BIN)/kubectl-berth
	@ln -sf berth $(BIN)/kubectl_complete-berth

# Linker flags that set the version of Kubernetes that the API server reports.
KUBERNETES_VERSION = -X k8s.io/component-base/version.gitVersion=$(shell cd $(ROOT)/cmd/berth-apiserver && go list -m -f '{{.Version}}' k8s.io/kubernetes)

.PHONY: apiserver
apiserver: ## Build berth-apiserver, the control plane of berth up, into bin/ (takes minutes the first time).
	@hack/compile.sh cmd/berth-apiserver $(BIN)/berth-apiserver . "$(KUBERNETES_VERSION)"

# Version of the language server that the samples and the tests use.
GOPLS := v0.23.0

.PHONY: gopls
gopls: ## Build gopls, a language server for Go, into bin/.
	@if [ "$$($(BIN)/gopls version 2>/dev/null | awk 'NR == 1 {print $$2}')" != "$(GOPLS)" ]; then \
	echo "building gopls $(GOPLS)" >&2; \
	GOBIN=$(BIN) CGO_ENABLED=0 go install golang.org/x/tools/gopls@$(GOPLS) || echo "cannot build gopls (see above); skipping its sample" >&2; fi

# Builds programs of the control plane, unless KUBEBUILDER_ASSETS is a directory that already contains them.
assets = if [ "$(KUBEBUILDER_ASSETS)" = "$(BIN)" ]; then hack/controlplane/build.sh $(BIN) $(1); else echo "using $(1) in $(KUBEBUILDER_ASSETS)" >&2; fi

.PHONY: controlplane
controlplane: apiserver ## Build what the tests with Pods use into bin/: berth-apiserver, etcd, kube-apiserver, kube-controller-manager and kubectl (takes minutes the first time).
	@$(call assets,etcd kube-apiserver kube-controller-manager kubectl)

# What the benchmarks compare with.
.PHONY: kube-apiserver
kube-apiserver: apiserver
	@$(call assets,etcd kube-apiserver)

.PHONY: kubectl
kubectl: ## Build kubectl into bin/.
	@$(call assets,kubectl)

# Directory of the cluster that make cluster creates. It contains the kubeconfig.
export BERTH_CLUSTER ?= /var/lib/berth-cluster

.PHONY: node
node: build ## Build into bin/ what a node needs in addition to the control plane: kubelet, kube-proxy, kube-scheduler and programs of this project.
	@hack/controlplane/build.sh $(BIN) etcd kube-apiserver kube-controller-manager kubectl kube-scheduler kubelet kube-proxy
	@$(PLAIN) go build -o $(BIN)/ ./hack/cluster ./hack/cluster/pause
	@$(PLAIN) go build -o $(BIN)/workload ./internal/runtime/conformance/workload
	@$(PLAIN) go build -o $(BIN)/resident ./test/races/workload
	@$(PLAIN) go build -o $(BIN)/lspfake ./test/lspfake

.PHONY: helm
helm: ## Build Helm into bin/, in the version that the chart is tested with (takes minutes the first time).
	@cd hack/install && $(PLAIN) go build -ldflags "-s -w" -o $(BIN)/helm helm.sh/helm/v4/cmd/helm

.PHONY: cluster
cluster: node ## Create a one-node cluster on this machine for tests. Needs root and Debian's containerd.
	@KUBEBUILDER_ASSETS=$(BIN) $(BIN)/cluster up
	@$(BIN)/cluster image localhost/berth/workload:test $(BIN)/workload
	@$(BIN)/cluster image localhost/berth/resident:test $(BIN)/resident
	@$(BIN)/cluster image localhost/berth/lspfake:test $(BIN)/lspfake
	@$(BIN)/cluster image localhost/berth/berth:test $(BIN)/berth $(BIN)/berth-shim $(BIN)/berth-lsp $(BIN)/berth-lsp-pod

.PHONY: cluster-down
cluster-down: ## Delete the cluster of make cluster and everything that it created.
	@$(PLAIN) go run ./hack/cluster down

.PHONY: generate
generate: ## Generate the deep-copy functions and the apply configurations of the API types.
	@$(TOOL) controller-gen object:headerFile=hack/boilerplate.go.txt paths=./api/v1alpha1
	@$(TOOL) controller-gen applyconfiguration:headerFile=hack/boilerplate.go.txt paths=./api/v1alpha1

.PHONY: manifests
manifests: ## Generate the CustomResourceDefinitions and the API reference, and update the Helm chart.
	@$(TOOL) controller-gen crd paths=./api/v1alpha1 output:crd:dir=config/crd/bases
	@$(PLAIN) go run ./hack/crds config/crd/bases
	@$(MAKE) --no-print-directory reference
	@$(MAKE) --no-print-directory chart

.PHONY: released-crds
released-crds: ## Accept incompatible changes of the CustomResourceDefinitions: make verify then compares with the current ones.
	@cd hack/crdify && $(PLAIN) go run . -update released $(ROOT)/config/crd/bases

.PHONY: reference
reference: ## Generate docs/reference: the API from the comments of api/v1alpha1, the commands from their help texts.
	@hack/reference/generate.sh docs/reference

.PHONY: picture
picture: build apiserver kubectl ## Draw the picture of the README from a session with the programs in bin/.
	@hack/picture/draw.sh

.PHONY: chart
chart: ## Update the Helm chart's copies of config/ and its README.
	@cd hack/install && $(PLAIN) go run ./chart

# Name and platforms of the image: make image IMAGE=example/berth:dev PLATFORMS=linux/arm64 PUSH=--push
IMAGE ?= ghcr.io/berth-dev/berth:0.1.0
PLATFORMS ?= linux/amd64,linux/arm64
PUSH ?=

.PHONY: image
image: ## Build the image of the manager with SBOM for amd64 and arm64, using docker buildx. PUSH=--push pushes it.
	@docker buildx build --platform $(PLATFORMS) --sbom=true --provenance=true --tag $(IMAGE) $(PUSH) .

# Version and platforms of the release: make release VERSION=v0.1.0 RELEASE_PLATFORMS=linux/amd64
VERSION ?= v0.0.0
RELEASE_PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

.PHONY: release
release: helm ## Write the files of release VERSION to dist/: archives, packages, SBOMs, chart, krew manifest, Homebrew formula, checksums.
	@hack/release/build.sh $(VERSION) $(RELEASE_PLATFORMS)

.PHONY: smoke
smoke: ## Unpack the Linux archive in dist/ as a new user, and serve a page with a DevServer. Also install all commands with go install.
	@hack/release/smoke.sh
	@hack/release/install.sh

.PHONY: sbom
sbom: build ## Write bin/sbom.cdx.json, an SBOM of the programs' Go modules in the CycloneDX format, from their build information.
	@cd hack/install && $(PLAIN) go run ./sbom $(BIN)/berth $(BIN)/berth-shim $(BIN)/berth-lsp $(BIN)/berth-lsp-pod > $(BIN)/sbom.cdx.json && echo "wrote $(BIN)/sbom.cdx.json"

.PHONY: clean
clean: ## Remove bin/.
	@rm -rf $(BIN)

##@ Check
.PHONY: test
test: build apiserver ## Run the unit and integration tests, with -race if it is available. Builds what they need, except for tests with Pods. Lists the tests that are skipped because of a missing program.
	@race=$$(hack/race.sh); echo "testing $$race (compiling takes minutes the first time)" >&2; \
	hack/precompile.sh $$race $(PACKAGES); \
	hack/test.sh $$race $(TESTFLAGS) $(PACKAGES)

# Tests that make test skips without kube-apiserver. They check the Pods and the installation that Berth creates; test-cluster runs such Pods on a node.
PODS := TestIntegration|TestManager_NeedsOnlyNamespacedPermissions|TestStart_ReadsDatabaseOfEtcd

.PHONY: test-pods
test-pods: build controlplane ## Run the tests that need Pods, kube-apiserver or kubectl, with -race if it is available. They need no node.
	@race=$$(hack/race.sh); echo "testing with Pods $$race" >&2; \
	hack/test.sh $$race $(TESTFLAGS) ./test/install ./internal/runtime/pod && \
	hack/test.sh $$race $(TESTFLAGS) -run '^($(PODS))$$' ./test/integration ./internal/cli ./internal/controlplane

.PHONY: test-integration
test-integration: apiserver ## Test the controllers with a real API server and a fake runtime.
	@go test $$(hack/race.sh) -count=1 -timeout $(TIMEOUT) ./test/integration/... ./test/api/...

.PHONY: test-faults
test-faults: apiserver ## Test the controllers with a crash, a lost response or a stale read at every step, and Berth with a clock that is stepped in every state.
	@go test $$(hack/race.sh) -count=1 -timeout $(TIMEOUT) ./test/faults/...
	@$(PLAIN) go test -count=1 -timeout $(TIMEOUT) ./test/clocks/...

.PHONY: test-clocks
test-clocks: apiserver ## Step the clock of all processes of Berth in every state, also back after each step. Takes three minutes.
	@CLOCKS_LONG=1 $(PLAIN) go test -count=1 -timeout $(TIMEOUT) -v ./test/clocks/...

# Number of plans that two clients approve, retry and revert: make approvals RACE_PLANS=1000
RACE_PLANS ?= 200

.PHONY: approvals
approvals: apiserver ## Approve, retry and revert RACE_PLANS=200 plans with two clients at random. Takes two minutes.
	@RACE_PLANS=$(RACE_PLANS) go test $$(hack/race.sh) -count=1 -timeout $(TIMEOUT) -v -run TestPlanApprove_RunsOnlyPhasesThatApproverSaw ./internal/cli

# Number of states of the state machine to explore from each initial state: make explore STATES=2000000
STATES ?= 200000

.PHONY: explore
explore: ## Explore interleavings of events in the life of one object: STATES=200000 states from each of nine initial states. Takes minutes.
	@EXPLORE_STATES=$(STATES) $(PLAIN) go test -count=1 -timeout 30m -v -run TestInterleavings ./internal/lifecycle

.PHONY: cover
cover: ## Check that the tests of the state machine cover at least 97 % of its statements.
	@$(PLAIN) go test -count=1 -cover ./internal/lifecycle | awk '{print} /coverage:/ {gsub("%", "", $$5); enough = $$5 >= 97} END {exit !enough}'

.PHONY: races
races: apiserver ## Run the race table with real processes and a real API server. Prints one line per row; takes about three minutes.
	@race=$$(hack/race.sh); go test -c $$race -o $(BIN)/races.test ./test/races
	@cd test/races && $(BIN)/races.test -test.timeout 20m -ginkgo.no-color -ginkgo.silence-skips

.PHONY: mutants
mutants: apiserver ## Run every row of the race table with its guard removed; each has to fail. ROWS="R07 S11" selects rows.
	@$(PLAIN) go test -c -o $(BIN)/mutants.test ./test/races # without -race: a missing guard causes no data race, and this is several times as fast
	@$(PLAIN) go build -o $(BIN)/mutants ./test/races/mutants
	@cd test/races && $(BIN)/mutants $(BIN)/mutants.test $(ROWS)

# Number of objects: make hostile OBJECTS=10000 SEED=7
OBJECTS ?= 1000
SEED ?= 1

.PHONY: hostile
hostile: apiserver ## Create, change and delete OBJECTS=1000 objects with extreme specs, and check that a well-behaved object is not affected.
	@OBJECTS=$(OBJECTS) SEED=$(SEED) $(PLAIN) go test -count=1 -timeout 60m -v ./test/hostile

# Duration of each fuzz target: make fuzz FUZZ_FOR=3m
FUZZ_FOR ?= 5s

.PHONY: fuzz
fuzz: ## Fuzz each parser of external input for FUZZ_FOR=5s.
	@$(PLAIN) hack/fuzz.sh $(FUZZ_FOR)

# Duration: make races-hosts HOSTS_FOR=5m
HOSTS_FOR ?= 5m

.PHONY: races-hosts
races-hosts: apiserver ## Disturb two managers with separate state directories on one API server for HOSTS_FOR=5m, with and without leader election.
	@race=$$(hack/race.sh); go test -c $$race -o $(BIN)/races.test ./test/races
	@cd test/races && RACES_HOSTS_FOR=$(HOSTS_FOR) $(BIN)/races.test -test.timeout 30m -ginkgo.no-color -ginkgo.silence-skips -ginkgo.label-filter=S19

.PHONY: chaos
chaos: apiserver ## Kill processes at random during random client operations, for CYCLES=200 cycles. SEED= repeats a run.
	@CYCLES=$(CYCLES) $(PLAIN) go test -count=1 -timeout $$(($(CYCLES) * 20 + 900))s -v ./test/chaos/

.PHONY: bench
bench: build kube-apiserver gopls ## Measure speed and cost against the bare API server, pm2 and the kernel. Takes about seven minutes on an idle machine.
	@$(PLAIN) go test -count=1 -timeout 60m -v ./test/performance

SCALE ?= 5000

.PHONY: scale
scale: kube-apiserver ## Measure an increasing number of DevServers in Pods on simulated nodes, up to SCALE=5000. Takes about ten minutes.
	@SCALE=$(SCALE) $(PLAIN) go test -count=1 -timeout 90m -v -run '^TestScale_' ./test/performance

.PHONY: test-cluster
test-cluster: node apiserver helm ## Create a cluster, test Pods and the installation on it, and delete it. Needs root and Debian's containerd.
	@KUBEBUILDER_ASSETS=$(BIN) hack/cluster/test.sh

.PHONY: e2e
e2e: build apiserver kubectl helm ## Test the installation and all kinds on the cluster in KUBECONFIG, of which this machine is a node. Needs root. BERTH_TEST_IMAGE is the manager's image.
	@test -n "$$KUBECONFIG" || { echo "e2e: set KUBECONFIG to the cluster to test" >&2; exit 2; }
	@BERTH_CLUSTER= BERTH_TEST_KUBECONFIG="$$KUBECONFIG" KUBEBUILDER_ASSETS=$(BIN) $(PLAIN) go test -count=1 -timeout 60m -v -run TestCluster ./test/cluster

# Labels of the end-to-end tests to run: make test-e2e LABELS='!any-user'
LABELS ?=

.PHONY: test-e2e
test-e2e: build apiserver kubectl gopls ## Run the end-to-end tests with Vite, Next, Flask, Django, Codex and Go. Needs node, npm, chromium, python3-flask and python3-django. RELOADS=100 reloads servers more often.
	@$(PLAIN) go test -count=1 -timeout 40m -v ./test/e2e/... -ginkgo.v -ginkgo.label-filter="$(LABELS)"

.PHONY: test-e2e-user
test-e2e-user: build apiserver kubectl gopls ## Run the end-to-end tests as an ordinary user. Needs root.
	@$(PLAIN) go test -c -o $(BIN)/e2e.test ./test/e2e
	@hack/as-user.sh -test.timeout 40m -ginkgo.v -ginkgo.label-filter="$(LABELS)"

ANSWERS ?= 20

.PHONY: answers
answers: build apiserver kubectl gopls ## Answer the first of two questions of each coding agent with berth send, ANSWERS=20 times. Needs node and npm.
	@cd test/e2e && ANSWERS=$(ANSWERS) KUBEBUILDER_ASSETS=$(BIN) $(PLAIN) go test -count=1 -timeout 150m -v . -ginkgo.focus='one question with one answer'

TERMINAL_PACKAGES := vim neovim fzf irb htop less nano tmux mc emacs-nox screen ipython3 python3-prompt-toolkit ranger w3m btop dialog whiptail tig micro kakoune fish
GUM_VERSION := v0.17.0

.PHONY: terminals
terminals: ## Run 27 programs in terminals of Host, Tmux and Docker, and check the answers to their questions. Needs root, node, npm and the packages that it names.
	@mkdir -p $(RECORDED_AGENTS)/go && cp test/e2e/projects/agents/package*.json $(RECORDED_AGENTS) && cd $(RECORDED_AGENTS) && npm ci --no-audit --no-fund --silent
	@cd $(RECORDED_AGENTS)/node_modules/.bin && ln -sf ../@anthropic-ai/claude-code-linux-*/claude ../opencode-linux-*/bin/opencode .
	@cd $(RECORDED_AGENTS) && GOBIN=$(RECORDED_AGENTS)/go go install github.com/charmbracelet/gum@$(GUM_VERSION)
	@echo "Debian packages of the programs: $(TERMINAL_PACKAGES)"
	@BERTH_TERMINAL_PROGRAMS=$(RECORDED_AGENTS)/go:$(RECORDED_AGENTS)/node_modules/.bin go test -count=1 -timeout 30m -p 1 -v -run TestPrograms_ ./internal/runtime/host ./internal/runtime/tmux ./internal/runtime/docker

# Screens to record: make record-agents RECORD='^claude-'
RECORD ?= ^(claude|codex|gemini|opencode)-
# Directory of the agents, the default of the flag -tools. Its name must not appear in a recording.
RECORDED_AGENTS := /tmp/x-tools

.PHONY: record-agents
record-agents: ## Record the screens of Claude Code, Codex, Gemini CLI and opencode again, which the tests of AwaitingInput use, and print the figures. Needs root, node and npm.
	@mkdir -p $(RECORDED_AGENTS) && cp test/e2e/projects/agents/package*.json $(RECORDED_AGENTS) && cd $(RECORDED_AGENTS) && npm ci --no-audit --no-fund --silent
	@cd $(RECORDED_AGENTS)/node_modules/.bin && ln -sf ../@anthropic-ai/claude-code-linux-*/claude ../opencode-linux-*/bin/opencode .
	@go test ./internal/terminal -run 'TestRecord$$' -count=1 -timeout 2h -record '$(value RECORD)' -tools $(RECORDED_AGENTS)
	@go test ./internal/terminal -run RecordedPrograms -count=1 -v

# Sessions to record: make record-sessions SESSIONS='^claude-'
SESSIONS ?= .

.PHONY: record-sessions
record-sessions: ## Record the sessions of five agents again, and print how well they are recognized. Needs root, node, npm, and a quiet machine.
	@mkdir -p $(RECORDED_AGENTS) && cp test/e2e/projects/agents/package*.json $(RECORDED_AGENTS) && cd $(RECORDED_AGENTS) && npm ci --no-audit --no-fund --silent
	@cd $(RECORDED_AGENTS) && npm install --no-save --no-audit --no-fund --silent @qwen-code/qwen-code@0.24.4
	@cd $(RECORDED_AGENTS)/node_modules/.bin && ln -sf ../@anthropic-ai/claude-code-linux-*/claude ../opencode-linux-*/bin/opencode .
	@go test ./internal/terminal -run TestRecordSessions -count=1 -timeout 2h -at 2 -sessions '$(value SESSIONS)' -tools $(RECORDED_AGENTS)
	@go test ./controllers/instance -run RecordedSessions -count=1 -v

.PHONY: test-languageservers
test-languageservers: gopls ## Compare 17 language servers, shared by several clients, with the same servers alone. Needs node, npm and clangd. EDITS=400 and DEPENDENCIES=1000 edit more often, WORKTREES=10 compares more worktrees.
	@echo "testing language servers (the first run installs them with npm)" >&2
	@go test $$(hack/race.sh) -count=1 -timeout 120m -v ./test/languageservers

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## Format the code.
	@$(BIN)/golangci-lint fmt ./...

.PHONY: lint
lint: $(BIN)/golangci-lint ## Lint the code, and check the API types against the conventions of Kubernetes.
	@echo "linting" >&2
	@$(PLAIN) $(BIN)/golangci-lint run --timeout 20m ./...
	@cd hack/apilint && $(PLAIN) go build -o $(BIN)/apilint . && cd $(ROOT) && $(BIN)/apilint ./api/v1alpha1

# Built without optimizations: this halves the build time, which saves more time than the slower linter costs.
$(BIN)/golangci-lint: hack/tools/go.mod
	@echo "building golangci-lint (takes minutes the first time)" >&2
	@mkdir -p $(BIN)
	@$(PLAIN) go build -gcflags='all=-N -l' -modfile=hack/tools/go.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: verify
verify: kubectl $(BIN)/golangci-lint ## Check generated files, formatting, portability and lint.
	@$(PLAIN) hack/verify.sh
	@$(MAKE) --no-print-directory lint
