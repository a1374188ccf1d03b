PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OLDEST := .venv-oldest
CODE := autopar cost_models tests examples docs
export OMP_NUM_THREADS = 1

.PHONY: demo test lint types slow golden oldest docs clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/torchrun --standalone --nproc-per-node 4 examples/train_gpt.py

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP)
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -q -m "not long"

slow: $(STAMP)
	$(BIN)/pytest -q -m long

# Writes the generated pages and all golden files anew: read the diff.
golden: $(STAMP)
	$(BIN)/pytest -q -m "not long" --update-golden $$(grep -rl golden tests --include='test_*.py')

# The everyday tests with the oldest torch that is supported; several GB are downloaded.
oldest:
	mkdir -p build
	sed 's/^torch==.*/torch==2.11.0/' constraints.txt > build/oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -c build/oldest.txt -e ".[dev]"
	$(OLDEST)/bin/pytest -q -m "not slow"

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/site/mkdocs.yml
	@echo "open build/docs/index.html"

clean:
	rm -rf $(VENV) $(OLDEST) build *.egg-info
