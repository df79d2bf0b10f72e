# `make reproduce` and `make test` each work as the first command on a fresh machine with Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
VLLM := .venv-vllm
BIN := $(VENV)/bin
SEED ?= 111
LOCKS := requirements.lock requirements-cpu.lock requirements-cuda.lock
# byte code is made for what is imported, not for all: half a gigabyte less
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: help venv packages reproduce tables docs test test-long test-real test-slow test-vllm oracle lint format bench size prose clean

help:
	@echo "make reproduce  environment, semantic fusion in both regimes (seed $(SEED)), tables against the paper, report page"
	@echo "make tables     the committed tables and figures and the README's results, from the committed records"
	@echo "make docs       the pages of docs/ as a site in outputs/site, links checked"
	@echo "make test       environment, the default test suite (CPU, offline)"
	@echo "make lint       ruff, format check, mypy over lit_ctg"
	@echo "make test-long  whole runs, several processes, every variant: what CI runs beside make test"
	@echo "make test-real  tests on SmolLM2, which is fetched once (93 MB)"
	@echo "make test-slow  the tests that take minutes each"
	@echo "make test-vllm  the tests inside vLLM, in an environment of their own (.venv-vllm, 3.4 GB)"
	@echo "make oracle     what moving code must not change: cells and verdicts, records, configuration hashes, texts of smoke runs"
	@echo "make size       the size of the project beside its limits; make prose: how long its sentences are"
	@echo "make bench      the benchmarks: two ways in one run, as ratios"

# what is installed is compared with the locks, not their dates; .locks is written last, so a broken build starts anew
venv:
	@cat $(LOCKS) | cmp -s - $(VENV)/.locks || $(MAKE) --no-print-directory packages
	@cmp -s pyproject.toml $(VENV)/.project || { \
	  $(PIP) --no-index --no-deps --no-build-isolation --editable . && cp pyproject.toml $(VENV)/.project; }

# the CPU lock where there is no GPU and pip offers its torch; hashes decide what is installed. Always a new environment:
# pip takes a version that is already there for right, whatever its files are
packages:
	@test ! -L $(VENV) -a \( ! -e $(VENV) -o -e $(VENV)/pyvenv.cfg \) || { \
	  echo "$(VENV) is a link or not a virtual environment: move it away" >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	@lock=requirements-cuda.lock; \
	if nvidia-smi >/dev/null 2>&1; then echo "GPU: $$lock"; \
	elif $(PIP) --dry-run --no-deps "$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements-cpu.lock)" >/dev/null 2>&1; then \
	  lock=requirements-cpu.lock; echo "no GPU: $$lock"; \
	else echo "no GPU, but pip offers no CPU wheel of torch (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL): $$lock"; fi; \
	$(PIP) --require-hashes --no-deps -r $$lock
	$(BIN)/python -m pip check
	cat $(LOCKS) > $(VENV)/.locks

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
	for paper in $$(cd experiments && ls -d */paper.yaml | xargs -n1 dirname); do results=experiments/$$paper/records; $(BIN)/lit-ctg table paper=$$paper \
	  format=md size=all records=$$results out=experiments/$$paper/tables.md && rm -f experiments/$$paper/figures/*.svg && \
	  $(BIN)/lit-ctg figure paper=$$paper records=$$results out=experiments/$$paper/figures || exit 1; done
	$(BIN)/lit-ctg field report records=experiments/field/records out=experiments/field
	$(BIN)/lit-ctg report target=readme out=README.md

docs: venv
	$(PIP) --require-hashes --no-deps -r requirements-docs.lock
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

# tests on SmolLM2; without a network and without it in the cache they are skipped
test-real: venv
	-$(BIN)/lit-ctg model get smollm2
	LIT_CTG_TEST_THREADS=2 $(BIN)/python -m pytest -m real

test-slow: venv
	$(BIN)/python -m pytest -m slow

# a process for each file: on a CPU two engines do not fit in one
test-vllm:
	@cmp -s requirements-vllm.lock $(VLLM)/.lock || { $(PYTHON) -m venv --clear $(VLLM) && \
	  $(PIP:$(BIN)/%=$(VLLM)/bin/%) --require-hashes --no-deps -r requirements-vllm.lock && cp requirements-vllm.lock $(VLLM)/.lock; }
	@$(PIP:$(BIN)/%=$(VLLM)/bin/%) --no-index --no-deps --no-build-isolation --editable .
	-$(VLLM)/bin/lit-ctg model get smollm2
	status=0; for file in tests/serve/test_*.py; do OMP_NUM_THREADS=1 VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 \
	  $(VLLM)/bin/python -m pytest -m vllm $$file || test $$? = 5 || status=1; done; exit $$status

# some ten minutes; one part alone: python tools/oracle.py cells
oracle: venv
	$(BIN)/python tools/oracle.py

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: venv
	status=0; for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || status=1; done; exit $$status

size:
	@$(PYTHON) tools/size.py

prose:
	@$(PYTHON) tools/prose.py

clean:
	rm -rf $(VENV) $(VLLM) outputs dist build
