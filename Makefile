# make demo   fit the bundled example run and write the report to out/
# make test   run the tests
# A Python >= 3.12 is looked for; name one yourself with  make PYTHON=/path/to/python3.12 test

SHELL := /bin/sh
VENV := .venv
PYTHON ?=
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
EXAMPLE := data/gsm8k_like.json
# What that log does not tell (data/README.md).
SETTINGS := --group-size 8 --prompts-per-step 8 --reward-bounds 0 1

.DEFAULT_GOAL := help
.PHONY: help install demo test lint types format clean

help:
	@echo "make demo    fit $(EXAMPLE) and write the report to out/"
	@echo "make test    run the tests"
	@echo "make lint    ruff: rules and format"
	@echo "make types   mypy"
	@echo "make clean   remove $(VENV) and everything that was built"

# A candidate must really run (the shim of an inactive pyenv version exists, but only prints an
# error), be new enough, and be able to make an environment (Debian splits venv off).
$(VENV)/.created:
	@probe='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))'; \
	if [ -n "$(PYTHON)" ]; then candidates="$(PYTHON)"; else \
	    candidates="python3.13 python3.12 python3 \
	        $$(ls -d "$$HOME"/.pyenv/versions/3.1[23]*/bin/python 2>/dev/null | sort -rV)"; \
	fi; \
	found=; \
	for candidate in $$candidates; do \
	    if "$$candidate" -c "$$probe" >/dev/null 2>&1; then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "No usable Python >= 3.12 (tried: $$(echo $$candidates))." >&2; \
	    echo "Install Python 3.12 or 3.13 with its venv module (Debian, Ubuntu: apt install python3.12-venv;" \
	         "macOS: brew install python@3.13), or name one: make PYTHON=/path/to/python3.12 test" >&2; \
	    exit 1; \
	fi; \
	echo "Using $$found ($$("$$found" -c 'import platform; print(platform.python_version())'))"; \
	"$$found" -m venv --clear $(VENV)
	@touch $@

# Stamps: a second make installs nothing; a changed pyproject.toml installs again.
$(VENV)/.demo: pyproject.toml | $(VENV)/.created
	$(PIP) install --quiet -e .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.created
	$(PIP) install --quiet -e '.[test]'
	@touch $@ $(VENV)/.demo

install: $(VENV)/.test

demo: $(VENV)/.demo
	$(VENV)/bin/bayes-grpo fit $(EXAMPLE) $(SETTINGS) --out out

test: $(VENV)/.test
	$(VENV)/bin/python -m pytest

lint: $(VENV)/.test
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .

types: $(VENV)/.test
	$(VENV)/bin/python -m mypy

format: $(VENV)/.test
	$(VENV)/bin/python -m ruff check --fix .
	$(VENV)/bin/python -m ruff format .

clean:
	rm -rf $(VENV) out build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
