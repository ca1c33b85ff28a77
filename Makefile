# The environment: the active virtual environment, else .venv, made where there is none.
PYTHON ?= python3
VENV ?= $(or $(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin

DATA ?= data

.PHONY: demo test notebooks docs torture floors audit gpu lint install install-test clean

demo: install  ## pretrain on the digits and print what was learned
	$(BIN)/ssl-vision fit --config configs/pretrain/digits.yaml --name demo --overwrite true
	$(BIN)/ssl-vision evaluate runs/demo

test: install-test lint  ## the whole test suite, on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

notebooks: install-test  ## runs the notebooks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --nbmake --nbmake-timeout=180 notebooks

docs: install-test  ## the documentation as a site, in site/
	$(BIN)/mkdocs build --strict

torture: install-test  ## the long forms of the tests: 100 kills, 20,000 steps, every pair of options interrupted, 2,000 wrong configs, hostile inputs
	$(BIN)/python tests/reliability/torture.py
	OMP_NUM_THREADS=1 SSL_VISION_SEQUENCES=all $(BIN)/python -m pytest -n 2 tests/reliability/test_sequence.py
	$(BIN)/python tests/reliability/hostile.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m long
	SSL_VISION_FUZZ=2000 $(BIN)/python -m pytest tests/reliability/test_fuzz.py --hypothesis-show-statistics

floors: install-test  ## the tests on the oldest libraries that setup.cfg admits, in an environment of their own
	$(BIN)/uv venv --clear $(VENV)-floors
	$(BIN)/uv pip install --python $(VENV)-floors --resolution lowest-direct -e '.[cpu,test]'
	OMP_NUM_THREADS=1 $(VENV)-floors/bin/python -m pytest -n 2

audit: install-test  ## known vulnerabilities of the installed libraries, asked of PyPI
	$(BIN)/pip-audit --skip-editable

gpu:  ## on a machine with a GPU and DATA=folder of the official CIFAR-10: its tests, benchmarks, the paper's runs at batch 256
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python benchmarks/objectives.py --device cuda
	$(BIN)/python benchmarks/views.py --device cuda
	$(BIN)/python benchmarks/step.py --device cuda --compile_mode default
	$(BIN)/python benchmarks/reclaim.py --device cuda
	$(BIN)/python benchmarks/diagnostics.py --device cuda
	$(BIN)/python benchmarks/sharing.py --device cuda --compile_mode default
	$(BIN)/python benchmarks/epoch.py --device cuda --compile_mode default --images 50000 --data $(DATA)
	$(BIN)/python benchmarks/knn.py --device cuda
	$(BIN)/python benchmarks/guard.py --device cuda --data $(DATA) --width 64 --epochs 30 --seeds 3
	$(BIN)/ssl-vision reproduce configs/paper/macl.yaml --table 2 --cells 256 --seeds 1 -- \
		--data.root $(DATA) --trainer.precision bf16-mixed --model.compile_mode default
	$(BIN)/python benchmarks/family.py --data $(DATA) --width 64 --batch 256 --epochs 50 --limit 1.0 --precision bf16-mixed

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
