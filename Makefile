# Needs Python 3.11 or newer with pip, and make. Every target makes `.venv` first if it is missing
# or out of date, so `make test` is all it takes on a fresh clone.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# `make test TORCH=2.8.0 VENV=.venv-2.8`: with another release of torch, the rest as it is pinned.
TORCH ?=
CONSTRAINTS := $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)

# -qq: silent unless something is wrong.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input -c $(CONSTRAINTS)

# `make test EXTRAS=dev,ray` installs Ray too, and then its tests run: that is what CI does.
EXTRAS ?= dev

# `make test ARGS="--few 2"`: what pytest is told; here, two cases of every test.
ARGS ?=

# `make fuzz N=5000 SEED=1000`: how many networks, and the seed of the first.
# `make mutate N=1000 SEED=1`: how many mutants, and the seed of their choice.
fuzz: N ?= 1000
mutate: N ?= 500
SEED ?= 0

# The tests of the core (see `tool.coverage.run` in pyproject.toml); all others use it too.
CORE := $(patsubst %,tests/test_%.py, \
	balance basis basis_path_norm enumeration fuzz generalized numerical_edges \
	optim_exactness optim_fused optim_invariance optim_robustness optim_sides \
	optimizer_contract path_norm penalties penalties_native products regressions rescaling skeleton slopes \
	together trace)

# The stamp carries the versions, so that a new one reinstalls the package's metadata, or torch.
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/pathspace/__init__.py)
INSTALLED := $(VENV)/.installed-$(VERSION)-$(EXTRAS)$(if $(TORCH),-torch-$(TORCH))
DOCUMENTING := $(INSTALLED)-docs
MUTATING := $(INSTALLED)-mutation

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test docs bench fuzz mutate coverage lint format types clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/make \1@\2/p' $(MAKEFILE_LIST) | \
		while IFS=@ read -r target text; do printf '%-14s%s\n' "$$target" "$$text"; done

demo: $(INSTALLED)  ## four optimizers from one function in two sets of weights, and a report
	$(BIN)/pathspace demo

test: lint types  ## lint, types, tests, doctests, what pages and examples show: what CI runs
	$(BIN)/python -m pytest $(ARGS)

docs: $(DOCUMENTING)  ## the site: runs the gallery, warnings are errors; docs/_build/html
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

bench: $(INSTALLED)  ## how long things take, against their goals; renews results, pictures, docs
	$(BIN)/pathspace bench --json benchmarks/results/benchmarks.json
	$(BIN)/pathspace bench scaling --json benchmarks/results/scaling.json
	$(BIN)/python -m benchmarks.pages

fuzz: $(INSTALLED)  ## the laws on many random networks; N of them (1000), from SEED (0) on
	PYTHONPATH=tests $(BIN)/python -W ignore -m fuzz --nets $(N) --seed $(SEED)

mutate: $(MUTATING)  ## do tests notice mistakes? N mutants of the core (500), chosen by SEED (0)
	PYTHONPATH=tests $(BIN)/python -W ignore -m mutation --mutants $(N) --seed $(SEED)

coverage: $(INSTALLED)  ## lines of the core that its tests run; fails below 95 %
	$(BIN)/python -m coverage run -m pytest -q $(CORE)
	$(BIN)/python -m coverage report

lint: $(INSTALLED)  ## ruff and codespell: rules, format, spelling, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

format: $(INSTALLED)  ## ruff: repair what it can, and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(INSTALLED)  ## mypy
	$(BIN)/mypy

clean:  ## remove the virtual environment, caches and builds
	rm -rf $(VENV) build dist .coverage .mutation .pytest_cache .hypothesis .ruff_cache .mypy_cache
	rm -rf docs/_build docs/gallery docs/generated docs/sg_execution_times.rst
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build backend is installed from the constraints too and used without isolation, so that
# nothing unpinned takes part.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing pathspace and its development tools into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-*
	@$(if $(TORCH),sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(CONSTRAINTS))
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

$(DOCUMENTING): $(INSTALLED)
	@echo "Installing what builds the documentation"
	@$(PIP) --no-build-isolation -e '.[docs]'
	@touch $@

$(MUTATING): $(INSTALLED)
	@echo "Installing what makes mutants"
	@$(PIP) --no-build-isolation -e '.[mutation]'
	@touch $@
