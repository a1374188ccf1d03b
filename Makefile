PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 4 examples/train_gpt.py

lint: $(STAMP)
	$(BIN)/ruff check autopar cost_models tests examples
	$(BIN)/ruff format --check autopar cost_models tests examples

types: $(STAMP)
	$(BIN)/mypy

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/pytest -q

clean:
	rm -rf $(VENV) *.egg-info
