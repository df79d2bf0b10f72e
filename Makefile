# `make reproduce` and `make test` each work as the first command on a fresh machine with Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 111

.PHONY: help venv reproduce tables docs test test-long test-slow lint format bench clean

help:
	@echo "make reproduce  environment, semantic fusion in both regimes (seed $(SEED)), tables against the paper, report page"
	@echo "make tables     the committed tables and figures and the README's results, from the committed records"
	@echo "make docs       the pages of docs/ as a site in outputs/site, links checked"
	@echo "make test       environment, the default test suite (CPU, offline)"
	@echo "make lint       ruff, format check, mypy over lit_ctg"
	@echo "make test-long  whole runs, several processes, every variant: what CI runs beside make test"
	@echo "make test-slow  the tests that take minutes each"
	@echo "make bench      the benchmarks: two ways in one run, as ratios"

venv: $(VENV)/.ready

# torch goes first and by its pin: asked for by another package it may come with gigabytes of CUDA libraries. Its own file
# is checked against the lock; what a build for CUDA needs beside it (the second line) is not in there
$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	awk '/^torch==/ {p = 1} p {print} p && !/\\$$/ {exit}' requirements.lock > $(VENV)/torch.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/torch.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' $(VENV)/torch.lock)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# two runs side by side, a core each: twice as quick as one after the other on both
reproduce: venv
	OMP_NUM_THREADS=1 $(MAKE) --no-print-directory -j 2 train-baseline train-main
	$(BIN)/lit-ctg table paper=semantic_fusion records=outputs
	$(BIN)/lit-ctg report records=outputs out=outputs/report.html

train-%:
	$(BIN)/lit-ctg train -m experiment=semantic_fusion/$* regime=as_published,corrected size=paper seed=$(SEED) \
	  skip_completed=true

# the committed tables and figures and the README's results, from the committed records alone
tables: venv
	for paper in $$(cd experiments && ls -d */paper.yaml | xargs -n1 dirname); do results=experiments/$$paper/results; $(BIN)/lit-ctg table paper=$$paper \
	  format=md size=all records=$$results out=experiments/$$paper/tables.md && rm -f experiments/$$paper/figures/*.svg && \
	  $(BIN)/lit-ctg figure paper=$$paper records=$$results out=experiments/$$paper/figures || exit 1; done
	$(BIN)/python -m lit_ctg.results.publish README.md

# the extra docs is not in the lock: nothing else needs it
docs: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "mkdocs-material>=9.5" "mkdocstrings[python]>=0.27"
	$(BIN)/python -m mkdocs build --strict --quiet

# the whole suite, then its numerical tests as other processors run them: without vector instructions, on two threads and
# without compiled kernels; and with AVX2 at most
test: venv
	$(BIN)/python -m pytest -n 2 --dist loadfile
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 LIT_CTG_TEST_THREADS=2 LIT_CTG_TEST_HIDE_NUMBA=1 \
	  $(BIN)/python -m pytest -m "numerical and not long and not slow and not gpu"
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
	  $(BIN)/python -m pytest -n 2 --dist loadfile -m "numerical and not long and not slow and not gpu"

test-long: venv
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "long and not slow and not gpu"

test-slow: venv
	$(BIN)/python -m pytest -m slow

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: venv
	status=0; for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || status=1; done; exit $$status

clean:
	rm -rf $(VENV) outputs dist build
