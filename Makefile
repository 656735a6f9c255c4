# Copyright The Berth Authors.
# SPDX-License-Identifier: Apache-2.0

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
BIN := $(ROOT)/bin
TOOL := go tool -modfile=$(ROOT)/hack/tools/go.mod

# Where etcd and kube-apiserver are; with binaries of your own nothing is built.
export KUBEBUILDER_ASSETS ?= $(BIN)
# Everything but tests with -race is compiled in one way, so that it is compiled once.
PLAIN := CGO_ENABLED=0 GOFLAGS="$(shell go env GOFLAGS) -trimpath"
# How long the tests of one package may take.
TIMEOUT ?= 15m
# What to test: make test PACKAGES=./internal/lifecycle/...
PACKAGES ?= $(shell go list ./... | grep -vE '/test/(e2e|performance|races|chaos|cluster|faults|hostile)$$')
# How many cycles of chaos: make chaos CYCLES=2000 SEED=7
CYCLES ?= 200
# Further words for berth up: make run UP="--keep"
UP ?=

.PHONY: help
help: ## Show what can be made.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

##@ Use
.PHONY: run
run: build controlplane gopls ## Bring up a control plane, the manager and the samples, and show them until Ctrl-C.
	@samples=$$(hack/samples.sh) && PATH="$(BIN):$$PATH" $(BIN)/berth up -f "$$samples" $(UP)

.PHONY: install
install: ## Install berth, kubectl-berth, berth-shim, berth-lsp and berth-lsp-pod to where go install puts them.
	@$(PLAIN) go install ./cmd/...
	@bin=$$(go env GOBIN); bin=$${bin:-$$(go env GOPATH)/bin}; ln -sf berth "$$bin/kubectl-berth"; echo "installed into $$bin"

##@ Build
.PHONY: build
build: ## Build berth, kubectl-berth, berth-shim, berth-lsp, berth-lsp-pod and the programs of the samples into bin/.
	@echo "building berth and the programs that hold processes" >&2
	@mkdir -p $(BIN)
	@$(PLAIN) go build -o $(BIN)/ ./cmd/... ./samples/gohello ./samples/checkmodule
	@ln -sf berth $(BIN)/kubectl-berth

# The language server of the samples and the tests.
GOPLS := v0.23.0

.PHONY: gopls
gopls: ## Build gopls, a language server for Go, into bin/.
	@if [ "$$($(BIN)/gopls version 2>/dev/null | awk 'NR == 1 {print $$2}')" != "$(GOPLS)" ]; then \
	echo "building gopls $(GOPLS)" >&2; \
	GOBIN=$(BIN) CGO_ENABLED=0 go install golang.org/x/tools/gopls@$(GOPLS) || echo "gopls could not be built (see above): its sample is left out" >&2; fi

.PHONY: controlplane
controlplane: ## Build etcd, kube-apiserver, kube-controller-manager and kubectl into bin/ (minutes, the first time).
	@if [ "$(KUBEBUILDER_ASSETS)" = "$(BIN)" ]; then hack/controlplane/build.sh $(BIN); \
	else echo "using the control plane in $(KUBEBUILDER_ASSETS)" >&2; fi

# The folder of the cluster of make cluster; its kubeconfig is in there.
export BERTH_CLUSTER ?= /var/lib/berth-cluster

.PHONY: node
node: build ## Build what a node needs besides the control plane (kubelet, kube-proxy, kube-scheduler and ours) into bin/.
	@hack/controlplane/build.sh $(BIN) kube-scheduler kubelet kube-proxy
	@$(PLAIN) go build -o $(BIN)/ ./hack/cluster ./hack/cluster/pause
	@$(PLAIN) go build -o $(BIN)/workload ./internal/runtime/conformance/workload
	@$(PLAIN) go build -o $(BIN)/resident ./test/races/workload
	@$(PLAIN) go build -o $(BIN)/lspfake ./test/lspfake

.PHONY: helm
helm: ## Build Helm into bin/, in the version that the chart is tested with (minutes, the first time).
	@cd hack/install && $(PLAIN) go build -ldflags "-s -w" -o $(BIN)/helm helm.sh/helm/v4/cmd/helm

.PHONY: cluster
cluster: node ## Make a cluster of one node on this machine, with Debian's containerd, for tests. As root.
	@KUBEBUILDER_ASSETS=$(BIN) $(BIN)/cluster up
	@$(BIN)/cluster image localhost/berth/workload:test $(BIN)/workload
	@$(BIN)/cluster image localhost/berth/resident:test $(BIN)/resident
	@$(BIN)/cluster image localhost/berth/lspfake:test $(BIN)/lspfake
	@$(BIN)/cluster image localhost/berth/berth:test $(BIN)/berth $(BIN)/berth-shim $(BIN)/berth-lsp $(BIN)/berth-lsp-pod

.PHONY: cluster-down
cluster-down: ## End the cluster of make cluster, and leave nothing of it.
	@$(PLAIN) go run ./hack/cluster down

.PHONY: generate
generate: ## Generate the deep copies of the kinds.
	@$(TOOL) controller-gen object:headerFile=hack/boilerplate.go.txt paths=./api/...

.PHONY: manifests
manifests: ## Generate the CustomResourceDefinitions.
	@$(TOOL) controller-gen crd paths=./api/... output:crd:dir=config/crd/bases
	@$(PLAIN) go run ./hack/crds config/crd/bases
	@$(MAKE) --no-print-directory chart

.PHONY: chart
chart: ## Bring the copies of config/ in the Helm chart, and its README, up to date.
	@cd hack/install && $(PLAIN) go run ./chart

# What images are called and for what they are made: make image IMAGE=example/berth:dev PLATFORMS=linux/arm64 PUSH=--push
IMAGE ?= berth-dev/berth:0.1.0
PLATFORMS ?= linux/amd64,linux/arm64
PUSH ?=

.PHONY: image
image: ## Build the image of the manager for amd64 and arm64 with docker buildx, with its SBOM. PUSH=--push to push it.
	@docker buildx build --platform $(PLATFORMS) --sbom=true --provenance=true --tag $(IMAGE) $(PUSH) .

.PHONY: sbom
sbom: build ## Write bin/sbom.cdx.json: which modules are in the programs, as CycloneDX, from what the compiler has noted in them.
	@cd hack/install && $(PLAIN) go run ./sbom $(BIN)/berth $(BIN)/berth-shim $(BIN)/berth-lsp $(BIN)/berth-lsp-pod > $(BIN)/sbom.cdx.json && echo "wrote $(BIN)/sbom.cdx.json"

.PHONY: clean
clean: ## Remove what was built.
	@rm -rf $(BIN)

##@ Check
.PHONY: test
test: build controlplane ## Test everything but test/e2e and test/performance, building what that needs, with -race where it can be had.
	@race=$$(hack/race.sh); echo "testing $$race (the first time, compiling takes minutes)" >&2; \
	go test $$race -p 2 -count=1 -timeout $(TIMEOUT) $(PACKAGES)

.PHONY: test-integration
test-integration: controlplane ## Test the controllers on a real API server, over the fake runtime.
	@go test $$(hack/race.sh) -count=1 -timeout $(TIMEOUT) ./test/integration/... ./test/api/...

.PHONY: test-faults
test-faults: ## Test the controllers with a crash, a lost answer or a stale read at every step.
	@go test $$(hack/race.sh) -count=1 -timeout $(TIMEOUT) ./test/faults/...

# How many states of the state machine to walk for each restart policy: make explore STATES=2000000
STATES ?= 200000

.PHONY: explore
explore: ## Walk every interleaving of one object's life, far: STATES=200000 for each of seven beginnings, minutes.
	@EXPLORE_STATES=$(STATES) $(PLAIN) go test -count=1 -timeout 30m -v -run TestEveryInterleaving ./internal/lifecycle

.PHONY: cover
cover: ## Check that the tests of the state machine reach at least 97 % of its statements.
	@$(PLAIN) go test -count=1 -cover ./internal/lifecycle | awk '{print} /coverage:/ {gsub("%", "", $$5); enough = $$5 >= 97} END {exit !enough}'

.PHONY: races
races: controlplane ## Run the race table on the real thing: real processes, a real API server; a line per row. About three minutes.
	@race=$$(hack/race.sh); go test -c $$race -o $(BIN)/races.test ./test/races
	@cd test/races && $(BIN)/races.test -test.timeout 20m -ginkgo.no-color -ginkgo.silence-skips

.PHONY: races-teeth
races-teeth: controlplane ## Run every row of the race table with its guard taken out: each has to fail. ROWS="R07 S11" for some of them.
	@$(PLAIN) go test -c -o $(BIN)/races-teeth.test ./test/races # without -race: what a tooth shows is no data race, and it is several times as fast
	@$(PLAIN) go build -o $(BIN)/races-teeth ./test/races/teeth
	@cd test/races && $(BIN)/races-teeth $(BIN)/races-teeth.test $(ROWS)

# How many objects: make hostile OBJECTS=10000 SEED=7
OBJECTS ?= 1000
SEED ?= 1

.PHONY: hostile
hostile: controlplane ## Create, change and delete OBJECTS=1000 objects with extreme specs beside a well-behaved one, which must not notice.
	@OBJECTS=$(OBJECTS) SEED=$(SEED) $(PLAIN) go test -count=1 -timeout 60m -v ./test/hostile

# How long each: make fuzz FUZZ_FOR=3m
FUZZ_FOR ?= 5s

.PHONY: fuzz
fuzz: ## Fuzz each parser of outside input for FUZZ_FOR=5s.
	@$(PLAIN) hack/fuzz.sh $(FUZZ_FOR)

# How long: make races-hosts HOSTS_FOR=5m
HOSTS_FOR ?= 5m

.PHONY: races-hosts
races-hosts: controlplane ## Disturb two managers with two state directories on one API server for HOSTS_FOR=5m, once with and once without leader election.
	@race=$$(hack/race.sh); go test -c $$race -o $(BIN)/races.test ./test/races
	@cd test/races && RACES_HOSTS_FOR=$(HOSTS_FOR) $(BIN)/races.test -test.timeout 30m -ginkgo.no-color -ginkgo.silence-skips -ginkgo.label-filter=S19

.PHONY: chaos
chaos: controlplane ## Kill everything at random while clients do random things: CYCLES=200, and SEED= to draw the same again.
	@CYCLES=$(CYCLES) $(PLAIN) go test -count=1 -timeout $$(($(CYCLES) * 20 + 900))s -v ./test/chaos/

.PHONY: bench
bench: controlplane gopls ## Measure how fast it is and what it costs, against the floor, pm2 and the kernel: about seven minutes on an idle machine.
	@go test -count=1 -timeout 60m -v ./test/performance

SCALE ?= 5000

.PHONY: scale
scale: controlplane ## Measure ever more DevServers in Pods on played nodes, up to SCALE: about ten minutes for 5,000.
	@SCALE=$(SCALE) go test -count=1 -timeout 90m -v -run '^TestScale$$' ./test/performance

.PHONY: test-cluster
test-cluster: node controlplane helm ## Test Pods and the installation on a real node: make the cluster, run, take it down. As root, with Debian's containerd.
	@KUBEBUILDER_ASSETS=$(BIN) hack/cluster/test.sh

.PHONY: e2e
e2e: build controlplane helm ## Test the installation and all kinds on the cluster that KUBECONFIG names, a node of which is this machine, as root. BERTH_TEST_IMAGE names the manager's image there.
	@test -n "$$KUBECONFIG" || { echo "e2e: set KUBECONFIG to the cluster to test" >&2; exit 2; }
	@BERTH_CLUSTER= BERTH_TEST_KUBECONFIG="$$KUBECONFIG" KUBEBUILDER_ASSETS=$(BIN) go test -count=1 -timeout 60m -v -run TestCluster ./test/cluster

.PHONY: test-e2e
test-e2e: build controlplane gopls ## Test the whole with real processes: Vite, Next, Flask, Django, Codex, Go. Needs node, npm, chromium, python3-flask and python3-django. RELOADS=100 reloads servers more often.
	@$(PLAIN) go test -count=1 -timeout 40m -v ./test/e2e/... -ginkgo.v

.PHONY: test-e2e-user
test-e2e-user: build controlplane gopls ## The same as an ordinary user, which needs root.
	@$(PLAIN) go test -c -o $(BIN)/e2e.test ./test/e2e
	@hack/as-user.sh -test.timeout 40m -ginkgo.v

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## Format the code.
	@$(BIN)/golangci-lint fmt ./...

.PHONY: lint
lint: $(BIN)/golangci-lint ## Lint the code.
	@echo "linting" >&2
	@$(PLAIN) $(BIN)/golangci-lint run --timeout 20m ./...

# Without optimizations: it is built in half the time, which is more than it takes longer to run.
$(BIN)/golangci-lint: hack/tools/go.mod
	@echo "building golangci-lint (minutes, the first time)" >&2
	@mkdir -p $(BIN)
	@$(PLAIN) go build -gcflags='all=-N -l' -modfile=hack/tools/go.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: verify
verify: controlplane $(BIN)/golangci-lint ## Check that nothing is stale, unformatted or unportable, and lint.
	@$(PLAIN) hack/verify.sh
	@$(MAKE) --no-print-directory lint
