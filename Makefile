# `make demo` and `make test` work on a fresh clone with Python 3.11 or later, and nothing else.
# They make .venv, install into it what they need, and do so again only when the two files of
# SETUP change.

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
SETUP := pyproject.toml constraints.txt
WORKERS := 2
ONE_THREAD := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 # a worker: two pools on two cores fight

.PHONY: demo test bench clean

demo: .venv/installed
	$(BIN)/dyneval evaluate --limit 65536 --figure out/demo.png --report out/report

test: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --timeout 300

bench: .venv/installed
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/llm.py

clean:
	rm -rf .venv dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: $(SETUP) | $(BIN)/python
	@echo "installing dyneval into .venv; the first time takes some minutes, torch is large"
	@$(PIP) --constraint constraints.txt --editable .
	@touch $@

.venv/installed-dev: $(SETUP) | $(BIN)/python
	@echo "installing dyneval and its checks into .venv; the first time takes some minutes"
	@$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch .venv/installed $@

# PYTHON=... chooses another interpreter
$(BIN)/python:
	@for python in $(PYTHON) python3.11 python3; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			$$python -m venv --clear .venv && exit; \
			rm -rf .venv; echo "$$python cannot make a virtual environment (see above)" >&2; exit 1; \
		fi; \
	done; \
	echo "dyneval needs Python 3.11 or later, as python3.11 or python3;" \
		"install it, or name it: make PYTHON=/path/to/python" >&2; exit 1
