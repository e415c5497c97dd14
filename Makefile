# make demo: see it work.  make test: see the tests pass.  make help: everything else.
# Needs make and a Python 3.11 to 3.13; the rest goes into .venv.

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.12 python3.13 python3.11 python; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
  && { echo $$p; break; }; done)
endif

VENV := .venv
BIN := $(VENV)/bin
# Bytecode is made on all cores, and as they are imported of large packages of which tests import a part: pip's own way
# takes a minute longer.
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt
PARTLY := torch|transformers|sympy|networkx|pip|selenium|dask|distributed|huggingface_hub|debugpy|mypy|mypyc|IPython|jedi|trio
BYTECODE := $(BIN)/python -m compileall -qq -j 0 -x '/site-packages/($(PARTLY))/' $(VENV)/lib
RUN := $(VENV)/.ready-to-run
DEV := $(VENV)/.ready-to-test

DEMO_PROFILE := experiments/profiles/zb-14.6b-p16-m48-offload.yaml
DEMO_LIMIT := 24GiB

# the tests start hundreds of processes, each of which would compile the sources anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help docs demo compile test test-slow lint format bench referee confirm-cpu confirm-schedules confirm-gpu confirm-gpu-long train-switch tables claims figures results-fast notebooks readme-picture report-example clean

help:
	@echo "make demo            compare every schedule on a real profile; writes out/demo-*"
	@echo "make test            run the tests"
	@echo "make test-slow       run the few tests that take minutes"
	@echo "make compile         compile the loops ahead, as the first search would (about a minute)"
	@echo "make lint            ruff and mypy     (make format: let ruff repair the layout)"
	@echo "make bench           how fast the simulator is, on this machine"
	@echo "make referee         whether the search has become any worse: some 70 cells, by evaluations"
	@echo "make confirm-cpu     a small model profiled and run on this CPU, beside its prediction (3 minutes)"
	@echo "make confirm-schedules  every schedule with real stages on CPU ranks, and what faults lead to (10 minutes; after Ctrl-C it goes on)"
	@echo "make confirm-gpu     the same on a GPU, in under 9 minutes: needs no .venv but torch, numpy, scipy, yaml"
	@echo "make confirm-gpu-long  models of 7 and 14 billion parameters at several lengths, recomputation too (10 minutes)"
	@echo "make train-switch    a training run that changes its schedule, beside the unpipelined one (8 minutes)"
	@echo "make tables          the published bubble rates against ours, into results/"
	@echo "make claims          every number of README.md and results/README.md, as the tables give it"
	@echo "make figures         draw every figure of results/ again, from the tables there"
	@echo "make results-fast    run the experiments again that take ten minutes in all, and draw them"
	@echo "make notebooks       run the notebooks again and keep their outputs"
	@echo "make docs            the documentation as a site that works offline, into out/site"
	@echo "make readme-picture  the picture of the README, of a plan that is searched for (2 minutes)"
	@echo "make report-example  the examples and the picture of docs/report.md (the picture needs Chromium)"
	@echo "make clean           remove .venv and out/"

$(BIN)/python:
	@$(or $(PYTHON),false) -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))" 2>/dev/null || { \
	  echo "optpipe_sim needs Python 3.11, 3.12 or 3.13; $(if $(PYTHON),$(PYTHON) is not one of these,none is on the PATH); say where one is: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up .venv with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(RUN): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing optpipe_sim into .venv (the first time: about a minute) ..."
	@$(PIP) -e .
	@$(BYTECODE) || true  # not all files in packages are for this Python
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing optpipe_sim with what its tests need, torch among it, into .venv (the first time: some minutes) ..."
	@$(PIP) -e '.[dev,torch]'
	@$(BYTECODE) || true
	@touch $@ $(RUN)

demo: $(RUN)
	@$(BIN)/optpipe-sim compare $(DEMO_PROFILE) -m 48 --memory-limit $(DEMO_LIMIT) \
	  --gantt out/demo-gantt.png --chart out/demo-compare.png --trace out/demo-trace.json --save out/demo-best.json
	@echo "now make the command known to this shell:  . $(VENV)/bin/activate"

# once, before several processes of the tests would each do it
compile: $(RUN)
	@$(BIN)/python -m optpipe_sim.solvers.race.compiling

test: $(DEV) compile
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "not timing and not slow"
	@$(BIN)/python -m pytest -m timing $$(grep -rl --include='test_*.py' mark.timing tests)  # alone on the machine: it measures

test-slow: $(DEV) compile
	@$(BIN)/python -m pytest -m slow

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV)
	$(BIN)/python benchmarks/bench.py

referee: $(DEV)
	$(BIN)/python benchmarks/referee.py

train-switch: $(DEV)
	$(BIN)/optpipe-sim train --model experiments/models/tiny-llama.yaml --stages 2 -m 8 --steps 300 \
	  --schedule 1f1b --memory-limit 16MiB --drift 60% --slow 1:180:15 --write results/train_switch

confirm-cpu: $(DEV)
	$(BIN)/python benchmarks/confirm_cpu.py --write results/confirm_cpu

confirm-schedules: $(DEV)
	$(BIN)/python benchmarks/confirm_schedules.py --write results/confirm_schedules

# with the Python that has torch for this GPU, whatever else it lacks
confirm-gpu:
	$(PYTHON) benchmarks/confirm_gpu.py --write results/confirm_gpu

confirm-gpu-long:
	$(PYTHON) benchmarks/confirm_gpu.py --long --write results/confirm_gpu_long

tables: $(RUN)
	$(BIN)/optpipe-sim sweep experiments/zb_tables --fresh
	$(BIN)/optpipe-sim figures zb_tables

claims: $(RUN)
	$(BIN)/python -m results.claims.provenance
	$(BIN)/python -m results.claims

figures: $(RUN)
	$(BIN)/optpipe-sim figures

results-fast: $(RUN)
	$(BIN)/optpipe-sim sweep experiments/*/experiment.yaml --under 10 --fresh
	$(BIN)/optpipe-sim figures

notebooks: $(DEV)
	$(BIN)/python notebooks/execute.py

docs: $(VENV)/.ready-to-document
	$(BIN)/mkdocs build --strict --quiet
	@echo "out/site/index.html"

$(VENV)/.ready-to-document: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) -e '.[docs]'
	@touch $@

readme-picture: $(RUN)
	$(BIN)/optpipe-sim solve $(DEMO_PROFILE) -m 24 --memory-limit 24GiB --time-limit 90 --no-cache \
	  --save results/readme-plan.json
	$(BIN)/optpipe-sim simulate $(DEMO_PROFILE) --schedule results/readme-plan.json \
	  --memory-limit 24GiB --gantt results/readme-gantt.png

report-example: $(RUN)
	$(BIN)/optpipe-sim report zb-h1 experiments/profiles/zb-1.5b-p8-m24.yaml -m 24 --against 1f1b \
	  -o docs/report-example.html
	$(BIN)/optpipe-sim compare experiments/profiles/zb-1.5b-p8-m24.yaml -m 8 --memory-limit 24GiB \
	  --schedules 1f1b,zb-h1,zb-v,v-half,v-min,adaoffload --report docs/report-compare.html
	$(BIN)/python tests/helpers/reports/picture.py docs/report.png

clean:
	rm -rf $(VENV) out
