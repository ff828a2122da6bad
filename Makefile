# Each target sets up .venv by itself, and only when something changed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-slow check format bench clean

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

check: $(STAMP)  ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Speed, every part side by side with its bare cost: results/speed.json and results/speed.png
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench,image]'
	$(BIN)/python benchmarks/all.py --out results

clean:
	rm -rf .venv candidly-demo candidly-demo.partial build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
