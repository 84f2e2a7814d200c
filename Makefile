# A thin front for the CMake presets. `make help` lists what there is.
BUILD := build/dev

.PHONY: help setup gpu-tools build test test-gpu test-pod test-api image demo bench cluster chaos sanitize fuzz install clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup: ## install the packages that are missing (says which, first)
	@scripts/setup.sh build
	@scripts/setup.sh tls || echo "bulk bytes over TLS will use OpenSSL's AES-GCM"

gpu-tools: ## CUDA's headers and compiler, and NCCL, into build/tools/gpu, where they are not installed
	@! scripts/gpu-tools.sh --needed || { scripts/setup.sh gpu && scripts/gpu-tools.sh build/tools/gpu; }

build: setup ## build everything (build/dev)
	@mkdir -p $(BUILD) && cmake --preset dev >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	cmake --build --preset dev

test: ## build and run all tests
	@$(MAKE) --no-print-directory gpu-tools || echo "slots in GPU memory will be left out of the build, and refitd --version will say so"
	@$(MAKE) --no-print-directory build
	@scripts/setup.sh tools || echo "tests that drive a tool which is missing will skip, and say so"
	@scripts/setup.sh api && scripts/api-tools.sh build/tools/api || echo "the test of the API against docs/openapi.yaml will skip, and say so"
	@scripts/setup.sh pod && scripts/deploy-tools.sh build/tools || echo "tests of the chart and of its pod will skip, and say so"
	scripts/test.sh $(BUILD)

test-gpu: ## the tests that need no look-alike, then GB/s and limits, on this machine's GPUs; skips without one
	@$(MAKE) --no-print-directory gpu-tools
	@scripts/setup.sh build
	cmake --preset release -B build/gpu -DREFIT_TESTS=ON >/dev/null && cmake --build build/gpu
	scripts/test-gpu.sh build/gpu

test-pod: build ## run the chart's pod under podman: refits, restarts, probes, preStop (root)
	@scripts/setup.sh pod
	scripts/deploy-tools.sh build/tools
	scripts/test.sh $(BUILD) -L pod --verbose

test-api: build ## the real refitd against docs/openapi.yaml, for long (API_SECONDS=600)
	@scripts/setup.sh api
	scripts/api-tools.sh build/tools/api
	REFIT_BUILD=$(CURDIR)/$(BUILD) REFIT_API_TOOLS=$(CURDIR)/build/tools/api REFIT_API_SECONDS=$(or $(API_SECONDS),600) \
	  python3 tests/sidecar/test_openapi.py

image: ## build the image with podman, buildah or docker (IMAGE_FLAGS="--tag NAME:TAG --from-build build/dev")
	deploy/image.sh $(IMAGE_FLAGS)

demo: ## two replicas under load, refitted from a real checkpoint, rolled back, refitted again
	@scripts/setup.sh demo
	@mkdir -p build/demo && flock build/demo sh -c 'cmake --preset dev -DREFIT_TESTS=OFF -DREFIT_BENCH=OFF -B build/demo >/dev/null && cmake --build build/demo'
	@python3 examples/demo.py --build build/demo $(DEMO_FLAGS)

bench: setup ## the figures of docs/performance.md
	cmake --preset release >/dev/null && cmake --build --preset release
	bench/run.sh build/release $(BENCH_FLAGS)

cluster: ## nodes in network namespaces: time against the least the links allow, and against gloo (root; CLUSTER_FLAGS)
	@scripts/setup.sh cluster
	cmake --preset release >/dev/null && cmake --build --preset release
	python3 bench/cluster all --build build/release --install-peer $(CLUSTER_FLAGS)

chaos: build ## a fleet whose members, lead and sources are killed, stopped and cut off, for CHAOS_SECONDS=600 (root; CHAOS_SEED=N runs one again)
	cd tests/system && REFIT_BUILD=$(CURDIR)/$(BUILD) CHAOS_SECONDS=$(or $(CHAOS_SECONDS),600) CHAOS_SEED=$(or $(CHAOS_SEED),random) \
	  PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -v test_chaos.Seeds

sanitize: setup ## the suite under ASan + UBSan, then under TSan
	cmake --preset asan-ubsan && cmake --build --preset asan-ubsan && scripts/test.sh build/asan-ubsan
	cmake --preset tsan && cmake --build --preset tsan && scripts/test.sh build/tsan

fuzz: ## build the libFuzzer targets and run each for a while (FUZZ_SECONDS=60)
	@scripts/setup.sh fuzz
	cmake --preset fuzz && cmake --build --preset fuzz && scripts/fuzz.sh build/fuzz

install: ## install the release build (PREFIX=/usr/local, DESTDIR)
	cmake --preset release -DCMAKE_INSTALL_PREFIX=$(or $(PREFIX),/usr/local) >/dev/null && cmake --build --preset release
	cmake --install build/release

clean: ## remove build/
	rm -rf build
