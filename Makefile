# Each target makes or completes one .venv from constraints.txt and needs nothing else.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Two test processes, one thread each: torch's own threads would only fight over the cores.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: help demo test test-slow golden lint docs docs-fast bench bench-page bench-check
.DEFAULT_GOAL := help

help:
	@echo "make demo       train four small networks, audit and compare them, write a report, judge a claim"
	@echo "                (about 4 minutes the first time, of which the install is most; the demo itself half a minute)"
	@echo "make test       the tests (about 6 minutes on 2 cores; those in a browser are skipped if there is no chromium)"
	@echo "make test-slow  all tests, the slow ones too"
	@echo "make golden     every public figure against the committed ones, to 1e-12 (3 minutes)"
	@echo "make lint       format, lint, types, order of the rooms, public names"
	@echo "make docs       the documentation, in docs/_build/html, with every guide executed (3 minutes)"
	@echo "make docs-fast  the same without executing anything (under a minute)"
	@echo "make bench      the speed measurements in benchmarks/"
	@echo "make bench-page the records of docs/beside.md: Normscope and its peers by turns (half an hour; the peers: extra bench)"
	@echo "make bench-check  a few minutes of them, compared with the committed ratios"

$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Normscope needs Python 3.11 or newer; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "completing .venv (a few minutes the first time)"
	@$(PIP) setuptools hatchling editables
	@$(PIP) --no-build-isolation --editable '.[dev,hf]' --editable ./lab
	@touch $@

demo: $(READY)
	@$(BIN)/normscope demo
	@$(BIN)/normscope lab claims than.lemma1

test: $(READY)
	$(PYTEST)

test-slow: $(READY)
	$(PYTEST) -m ''

golden: $(READY)
	@$(BIN)/python tools/golden.py compare tests/golden/figures.json.gz

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

docs-fast: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html -D sphinx_gallery_conf.plot_gallery=0 docs docs/_build/fast

bench: $(READY)
	@for script in $(filter-out benchmarks/machine.py benchmarks/page.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench-page: $(READY)
	$(BIN)/python benchmarks/page.py all

bench-check: $(READY)
	@$(BIN)/python benchmarks/check.py
