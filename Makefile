# "make help" lists the targets; "make verify" is what CI runs. Go 1.26 or newer and root are the prerequisites;
# each target installs the Debian packages that it needs (tools/setup.sh).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.NOTPARALLEL:

MODULE  := github.com/tapir-cni/tapir
OUT     ?= bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X $(MODULE)/internal/version.version=$(VERSION)
GOBUILD := CGO_ENABLED=0 go build -trimpath -ldflags "$(LDFLAGS)"

# The commands of the product, and the agent that runs inside test microVMs where its source is there.
COMMANDS := $(notdir $(wildcard cmd/*))
GUEST    := $(wildcard internal/microvm/guest)

# Programs that only tests and checks run. They are built apart: make install must not see them.
TOOLS      := bin/tools
REFPLUGINS := bin/refplugins
NODEEXPORTER := bin/nodeexporter/node_exporter

PREFIX  ?= /usr/local
CNI_BIN ?= /opt/cni/bin
DESTDIR ?=

# What a test may not skip for; see CONTRIBUTING.md.
TAPIR_REQUIRE ?= root,bpf,btf,tun,ipv6,qemu,vm,chromium,refplugins,tools,cluster

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the commands into bin/ (GOARCH=arm64 OUT=bin/arm64 cross-builds)
	@mkdir -p $(OUT)
	$(GOBUILD) -o $(OUT)/ $(addprefix ./cmd/,$(COMMANDS))
	$(if $(GUEST),$(GOBUILD) -o $(OUT)/tapir-guest ./$(GUEST))

.PHONY: build-arm64
build-arm64:
	$(MAKE) --no-print-directory build GOARCH=arm64 OUT=bin/arm64

.PHONY: generate
generate: ## Rebuild the BPF objects and all other generated files
	tools/setup.sh generate
	go generate ./...

.PHONY: check-generated
check-generated: ## Rebuild the generated files and fail where the committed ones differ
	tools/setup.sh generate
	tools/check-generated.sh

.PHONY: fmt
fmt: ## Format the Go code
	gofmt -w $$(tools/gofiles.sh)

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## Check formatting, import rules and the linters of .golangci.yml
	@unformatted=$$(gofmt -l $$(tools/gofiles.sh)); \
	if [ -n "$$unformatted" ]; then echo "not formatted; run \"make fmt\":"; echo "$$unformatted"; exit 1; fi
	go mod verify >/dev/null
	$(TOOLS)/golangci-lint run ./...
	@for module in test/cluster test/deploy tools/image; do (cd $$module && $(CURDIR)/$(TOOLS)/golangci-lint run ./...); done

# Where the tests on a cluster find what "make cluster-programs" makes.
CLUSTER_ENV = TAPIR_K8S=$(CURDIR)/$(KUBERNETES) TAPIR_IMAGES=$(CURDIR)/bin/images TAPIR_KUBEROUTER=$(CURDIR)/$(KUBEROUTER)

.PHONY: test
test: build refplugins cluster-programs $(TOOLS)/gotestsum $(TOOLS)/leftovers ## Run every test, then prove that the machine is as it was
	tools/setup.sh net vm page cluster
	TAPIR_REQUIRE=$(TAPIR_REQUIRE) TAPIR_BIN_DIR=$(CURDIR)/bin TAPIR_REFPLUGINS=$(CURDIR)/$(REFPLUGINS) $(CLUSTER_ENV) \
	$(TOOLS)/leftovers $(TOOLS)/gotestsum --format pkgname --format-hide-empty-pkg --raw-command -- tools/gotest.sh

.PHONY: test-vm
test-vm: build refplugins $(TOOLS)/leftovers ## Run only the tests that boot microVMs
	tools/setup.sh net vm
	TAPIR_REQUIRE=$(TAPIR_REQUIRE) TAPIR_BIN_DIR=$(CURDIR)/bin TAPIR_REFPLUGINS=$(CURDIR)/$(REFPLUGINS) \
	$(TOOLS)/leftovers go test -count=1 -v ./test/vm/...

.PHONY: bench-add
bench-add: build refplugins $(TOOLS)/bench-add ## Measure ADD and DEL against bridge, ptp and tap (BENCH_FLAGS=-rounds=20)
	@tools/setup.sh net
	$(TOOLS)/bench-add -bin bin -refplugins $(REFPLUGINS) $(BENCH_FLAGS)

.PHONY: bench-xdp
bench-xdp: build refplugins $(TOOLS)/bench-xdp ## Measure the XDP shortcut against bridge and tc mirred (BENCH_FLAGS=-profile)
	@tools/setup.sh net
	$(TOOLS)/bench-xdp -bin bin -refplugins $(REFPLUGINS) $(BENCH_FLAGS)

.PHONY: bench-tapio
bench-tapio: $(TOOLS)/bench-tapio ## Measure TAP read and write by themselves (BENCH_FLAGS="-update docs/benchmarks.md" renews the tables)
	@$(TOOLS)/bench-tapio $(BENCH_FLAGS)

.PHONY: bench-napi
bench-napi: build $(TOOLS)/bench-napi ## Measure NAPI on a TAP's queue, through a pump and behind vhost-net (BENCH_FLAGS="-update docs/napi.md" renews the tables)
	@tools/setup.sh net vm debianvm $(if $(wildcard /dev/vhost-net),dpdk)
	$(TOOLS)/bench-napi -bin bin $(BENCH_FLAGS)

.PHONY: bench-agent
bench-agent: build $(NODEEXPORTER) $(TOOLS)/bench-agent ## Measure what the node agent chooses and costs (BENCH_FLAGS="-parts follow -rounds 3")
	@tools/setup.sh net
	$(TOOLS)/bench-agent -bin bin $(BENCH_FLAGS)

.PHONY: bench-guests
bench-guests: build $(TOOLS)/bench-guests ## Measure clones of one snapshot against guests with their pods' addresses, and against iptables (BENCH_FLAGS=-parts=add)
	@tools/setup.sh net
	$(TOOLS)/bench-guests -bin bin $(BENCH_FLAGS)

.PHONY: bench-ipam
bench-ipam: build refplugins $(TOOLS)/bench-ipam ## Measure one allocation against host-local with up to 60,000 held, and a /16 to its end
	@tools/setup.sh net
	$(TOOLS)/bench-ipam -bin bin -refplugins $(REFPLUGINS) $(BENCH_FLAGS)

.PHONY: bench-cluster
bench-cluster: build refplugins k8s test-images ## Measure how long pods take to start on a real cluster, against bridge + host-local
	@tools/setup.sh net cluster
	@CGO_ENABLED=0 go -C test/cluster build -o $(CURDIR)/$(TOOLS)/bench-cluster ./bench
	$(TOOLS)/bench-cluster -bin bin -k8s $(KUBERNETES) -refplugins $(REFPLUGINS) $(BENCH_FLAGS)

.PHONY: test-kernels
test-kernels: build refplugins ## Run the kernel tests on Debian's 6.1 and 6.12 under QEMU (KERNELS_FLAGS="-kernels 6.1 -packages test/cni")
	tools/setup.sh net vm debianvm
	go run ./test/kernels $(KERNELS_FLAGS)

# The project that enforces NetworkPolicies in the cluster tests, at the version that test/kuberouter/go.mod pins.
KUBEROUTER := bin/kuberouter/kube-router
$(KUBEROUTER): test/kuberouter/go.mod test/kuberouter/go.sum
	@mkdir -p $(@D)
	CGO_ENABLED=0 go -C test/kuberouter build -trimpath -ldflags "-s -w" -o $(CURDIR)/$@ tool
	@touch $@

# CLUSTER is the folder by which a cluster is known; CLUSTER_FLAGS="-cni bridge -proxy-mode iptables -nodes 3".
CLUSTER ?= bin/cluster
.PHONY: test-images cluster-programs
test-images:
	@tools/images.sh $(CURDIR)/bin/images test

# What the tests on a cluster run, beside the commands: images of this tree and of the commit before among it.
cluster-programs: k8s refplugins $(KUBEROUTER) test-images
	PLATFORMS=linux/$$(go env GOARCH) VERSION=$(VERSION) tools/images.sh $(CURDIR)/bin/images
	tools/images.sh $(CURDIR)/bin/images previous

.PHONY: cluster-up
cluster-up: k8s refplugins test-images $(TOOLS)/updown ## Start a Kubernetes of two nodes on this machine, without a CNI (CLUSTER_FLAGS="-cni bridge")
	@tools/setup.sh net cluster
	@$(TOOLS)/updown -dir $(CLUSTER) $(CLUSTER_FLAGS) up
.PHONY: cluster-down
cluster-down: $(TOOLS)/updown ## End what "make cluster-up" started
	@$(TOOLS)/updown -dir $(CLUSTER) down

.PHONY: test-cluster
test-cluster: build cluster-programs $(TOOLS)/leftovers ## Run only the tests on a Kubernetes of two nodes (CLUSTER_TESTS="-run TestUpgrade")
	tools/setup.sh net vm cluster
	TAPIR_REQUIRE=$(TAPIR_REQUIRE) TAPIR_BIN_DIR=$(CURDIR)/bin TAPIR_REFPLUGINS=$(CURDIR)/$(REFPLUGINS) $(CLUSTER_ENV) \
	$(TOOLS)/leftovers go -C test/cluster test -count=1 -v -timeout 20m $(CLUSTER_TESTS) .

.PHONY: quickstart
quickstart: build ## Boot two microVMs on TAPs of this build, show what they can do, clean up
	tools/setup.sh net vm
	bin/tapirctl quickstart

.PHONY: verify
verify: lint build-arm64 check-generated test ## What CI runs

.PHONY: image
image: ## Build the container image for amd64 and arm64 into bin/images/tapir.tar, an OCI archive; no registry, the same bytes each time
	tools/images.sh bin/images

.PHONY: install
install: build ## Install the plugins into /opt/cni/bin, tapirctl and tapird into /usr/local/bin (DESTDIR, CNI_BIN, PREFIX)
	install -d $(DESTDIR)$(CNI_BIN) $(DESTDIR)$(PREFIX)/bin
	install -m 0755 bin/tapir bin/tapir-ipam $(DESTDIR)$(CNI_BIN)/
	install -m 0755 bin/tapirctl bin/tapird $(DESTDIR)$(PREFIX)/bin/

.PHONY: clean
clean: ## Remove what the targets above built
	rm -rf bin .cache

# The reference plugins at the version that test/refplugins/go.mod pins, for tests and benchmarks.
.PHONY: refplugins
refplugins: $(REFPLUGINS)/.built
$(REFPLUGINS)/.built: test/refplugins/go.mod test/refplugins/go.sum
	@mkdir -p $(REFPLUGINS)
	CGO_ENABLED=0 go -C test/refplugins build -trimpath -ldflags "-s -w" -o $(CURDIR)/$(REFPLUGINS)/ tool
	@touch $@

# The exporter that bench-agent compares with, at the version that test/nodeexporter/go.mod pins.
$(NODEEXPORTER): test/nodeexporter/go.mod test/nodeexporter/go.sum
	@mkdir -p $(@D)
	CGO_ENABLED=0 go -C test/nodeexporter build -trimpath -ldflags "-s -w" -o $(CURDIR)/$@ tool
	@touch $@

# Kubernetes and containerd at the versions that test/k8s and test/containerd pin, for the cluster tests.
KUBERNETES := bin/k8s
.PHONY: k8s
k8s: $(KUBERNETES)/k8s ## Build Kubernetes and containerd for the cluster tests, or take them from the cache
$(KUBERNETES)/k8s: tools/kubernetes.sh $(wildcard test/k8s/* test/containerd/*)
	tools/kubernetes.sh $(CURDIR)/$(KUBERNETES)
	@touch $@

# Linters and the test runner at the versions that tools/go.mod pins.
$(TOOLS)/golangci-lint $(TOOLS)/gotestsum &: tools/go.mod tools/go.sum
	@mkdir -p $(TOOLS)
	go -C tools build -o $(CURDIR)/$(TOOLS)/ tool
	@touch $(TOOLS)/golangci-lint $(TOOLS)/gotestsum

.PHONY: $(TOOLS)/updown
$(TOOLS)/updown:
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go -C test/cluster build -o $(CURDIR)/$@ ./updown

.PHONY: $(TOOLS)/leftovers $(TOOLS)/bench-add $(TOOLS)/bench-napi
$(TOOLS)/leftovers:
	@mkdir -p $(TOOLS)
	@go build -o $@ ./test/leftovers
$(TOOLS)/bench-add:
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go build -o $@ ./test/bench/add

.PHONY: $(TOOLS)/bench-xdp
$(TOOLS)/bench-xdp:
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go build -o $@ ./test/bench/xdp

.PHONY: $(TOOLS)/bench-guests
$(TOOLS)/bench-guests:
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go build -o $@ ./test/bench/guests

.PHONY: $(TOOLS)/bench-ipam
$(TOOLS)/bench-ipam:
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go build -o $@ ./test/bench/ipam

.PHONY: $(TOOLS)/bench-tapio
$(TOOLS)/bench-tapio:
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go build -o $@ ./test/bench/tapio
.PHONY: $(TOOLS)/bench-agent
$(TOOLS)/bench-agent:
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go build -o $@ ./test/bench/agent
$(TOOLS)/bench-napi:
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go build -o $@ ./test/bench/napi
	@CGO_ENABLED=0 go build -o $@-vhost ./test/bench/napi/vhost/cmd
