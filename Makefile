# The environment: the active virtual environment, else .venv, made where there is none.
PYTHON ?= python3
VENV ?= $(or $(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin

DATA ?= data
DEADLINE ?= 540

.PHONY: demo help test wheel package-tests check-docs notebooks notebook-outputs catalogue docs torture floors audit gpu lint install install-test clean

demo: install  ## pretrains on the digits, and compares with baselines, with all and with few labels
	$(BIN)/ssl-vision fit --config configs/pretrain/digits.yaml --name demo --overwrite true
	$(BIN)/ssl-vision evaluate runs/demo --protocol macl --protocol few_labels

help:  ## lists the targets
	@sed -n 's/^\([a-z-]*\):.*## */\1\t/p' $(MAKEFILE_LIST) | expand -t 18

test: install-test  ## runs the linter, the type checker and, on two cores, the tests of the package
	$(MAKE) --jobs=2 lint package-tests

wheel: install-test  ## builds a wheel and runs README's first commands with it, outside of the checkout
	rm -rf build && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(BIN)/python -m pip install --quiet --no-deps --target build/wheel/installed build/wheel/*.whl
	cd build/wheel && export PYTHONPATH=installed && run="$(abspath $(BIN))/python -m ssl_vision" \
	&& $$run list configs && $$run fit --config pretrain/digits --name demo --trainer.max_epochs 1 \
	&& $$run evaluate runs/demo --protocol macl && $$run sweep temperature_digits --dry_run && $$run reproduce macl --dry_run

package-tests: install-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'not long and not docs'

check-docs: install-test  ## builds the documentation; runs its code, and checks the benchmarks and their records
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'docs and not long'

notebooks: install-test  ## runs the notebooks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --nbmake --nbmake-timeout=180 notebooks

notebook-outputs: install-test  ## runs the notebooks and stores their outputs
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/execute.py

catalogue: install-test  ## writes what help and tables show of classes, options and metrics without importing torch
	$(BIN)/python -m ssl_vision.catalogue

docs: install-test  ## builds the documentation in site/
	$(BIN)/mkdocs build --strict

torture: install-test  ## the long forms of the tests: 100 kills, 20,000 steps, every pair of options interrupted, 2,000 wrong configs, hostile inputs
	$(BIN)/python tests/reliability/torture.py
	OMP_NUM_THREADS=1 SSL_VISION_SEQUENCES=all $(BIN)/python -m pytest -n 2 tests/reliability/test_sequence.py
	$(BIN)/python tests/reliability/hostile.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m long
	SSL_VISION_FUZZ=2000 $(BIN)/python -m pytest tests/reliability/test_fuzz.py --hypothesis-show-statistics

floors: install-test  ## runs the tests with the oldest supported versions, in a separate environment
	$(BIN)/uv venv --clear $(VENV)-floors
	$(BIN)/uv pip install --python $(VENV)-floors --resolution lowest-direct -e '.[cpu,test]'
	OMP_NUM_THREADS=1 $(VENV)-floors/bin/python -m pytest -n 2

audit: install-test  ## checks the installed packages for known vulnerabilities on PyPI
	$(BIN)/pip-audit --skip-editable

gpu:  ## on a machine with a GPU: cells of the MACL paper, benchmarks and tests on the CIFAR-10 in DATA, for DEADLINE seconds; again to continue
	$(BIN)/python benchmarks/gpu.py --data $(DATA) --deadline $(DEADLINE)

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/.ssl_vision-cpu

install-test: $(VENV)/.ssl_vision-test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ssl_vision-cpu: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25'
	$(BIN)/python -m pip install -e '.[cpu]'
	touch $@

$(VENV)/.ssl_vision-test: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25'
	$(BIN)/python -m pip install -e '.[cpu,test,dev]'
	touch $@ $(VENV)/.ssl_vision-cpu

clean:  ## removes runs and caches, keeps the environment
	rm -rf runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
