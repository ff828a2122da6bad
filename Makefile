# Each target sets up .venv by itself, and only when something changed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-slow test-lowest check format bench clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## See the method at work on handwritten digits
	$(BIN)/candidly demo

test: $(STAMP)  ## All tests that belong in CI
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not slow"

test-slow: $(STAMP)  ## Campaigns: timing ratios, kills, long runs
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

.venv-lowest/.installed: pyproject.toml constraints.txt tools/lowest.py
	$(PYTHON) -m venv --clear .venv-lowest
	$(PYTHON) tools/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/pip install --quiet -c constraints.txt -c .venv-lowest/constraints.txt \
		-e '.[dev]'
	@touch $@

test-lowest: .venv-lowest/.installed  ## The same tests with the lowest declared versions
	OMP_NUM_THREADS=1 .venv-lowest/bin/pytest -n 1 -m "not slow"

check: $(STAMP)  ## Style, types and directions of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Speed of every part beside its bare cost: results/speed.json and speed.png
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,rivals]'
	$(BIN)/python benchmarks/all.py --out results

clean:
	rm -rf .venv .venv-lowest candidly-demo candidly-demo.partial build dist .hypothesis \
		.pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
