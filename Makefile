# On a fresh machine `make demo` or `make test` sets everything up and runs.
PYTHON ?= python3
BIN := .venv/bin
# Two threads on a busy machine can be seventy times slower than one.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test kernels check format clean

help:
	@echo "make demo    train a plain and a Bayesian network on real digits, compare them, draw it"
	@echo "make test    run the checks and the tests"
	@echo "make kernels interpret the GPU kernels on a CPU and compare them (fetches triton, 1 GB)"
	@echo "make check   run ruff and pyright"
	@echo "make format  let ruff format and mend the code"
	@echo "make clean   remove the virtual environment"

.venv/.installed: pyproject.toml requirements-dev.txt requirements-laplace.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check $$(grep '^torch==' requirements-dev.txt)
	$(BIN)/pip install -q --disable-pip-version-check -r requirements-dev.txt -e .
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -r requirements-laplace.txt
	touch $@

demo: .venv/.installed
	$(BIN)/bayesify demo

check: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

test: check
	$(BIN)/pytest -n 2 --dist worksteal

# In a folder of its own: torch for a CPU does not come with it, and is tested as it comes.
.venv/triton: .venv/.installed
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --target $@ triton==3.9.0

kernels: .venv/triton
	PYTHONPATH=.venv/triton $(BIN)/pytest tests/moments/test_fused_attention.py

format: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv
