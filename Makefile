# Everything from a fresh clone: "make test" and "make bench" set up .venv by themselves. "make" alone lists the targets.
# Works from any folder with "make -C". PYTHON=/path/to/python picks the interpreter that .venv is made with.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV SPARK_HOME SPARK_CONF_DIR
# Tests start hundreds of processes: each would compile all that it imports again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
PROFILE ?= default
WORKERS ?= 2
ARGS ?=
MINUTES ?= 5
HOURS ?= 1
S ?=
RUN ?=
A ?=
B ?=
FAIL ?=
SEED ?=
BACKENDS ?=
EVENTS ?=
KEY ?=
TIME ?=
DROP_BAD ?=
BUDGET ?=
FILES ?=
COUNT ?= 20
RANGE ?=
PROFILES := smoke default night

BIN := .venv/bin
VENV_PYTHON := $(BIN)/python
STAMP := .venv/.complete
LINT_PYTHON := .venv-lint/bin/python
LINT_STAMP := .venv-lint/.complete
LONG_STAMP := .venv-long/.complete
RELEASE_STAMP := .venv-release/.complete
# How many files are tested at a time, as an expression of $(WORKERS), which may also be a word of pytest-xdist.
at_a_time = -n $(if $(filter-out auto logical,$(WORKERS)),$$(($(1))),$(WORKERS))
# A third of all tests. None of them is of these two targets, whose processes need not collect them.
WITHOUT_CONFORMANCE = --ignore stores/tests/conformance
# A dependency of httpx2 brings the plugin "anyio", which takes each process half a second to load. No test uses it.
PYTEST = $(VENV_PYTHON) -m pytest -p no:anyio --durations 15 --durations-min 1 -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# A venv is tied to its folder and to the interpreter that it was made with: where either has gone, it is made anew.
ifneq ($(shell [ "$$(cat $(STAMP) 2>/dev/null)" = "$$PWD" ] && $(BIN)/python -c 'print("runs")' 2>/dev/null),runs)
.PHONY: $(STAMP)
endif

VARIABLES := PYTHON PROFILE WORKERS ARGS MINUTES HOURS S RUN A B FAIL SEED BACKENDS EVENTS KEY TIME DROP_BAD BUDGET FILES COUNT RANGE
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
ifneq ($(filter-out $(VARIABLES),$(GIVEN)),)
$(error No variable $(filter-out $(VARIABLES),$(GIVEN)) here. There are: $(VARIABLES))
endif

# What a variable of this file adds to a command of the harness. Values go through the shell's quotes as they are.
quoted = '$(subst ','\'',$(1))'
option = $(if $(strip $(2)),$(1) $(call quoted,$(2)))
SOME = $(call option,--seed,$(SEED)) $(call option,--backends,$(BACKENDS))
OWN_EVENTS = $(call option,--events,$(EVENTS)) $(call option,--key,$(KEY)) $(call option,--time,$(TIME)) $(if $(filter-out 0,$(DROP_BAD)),--drop-bad)

.PHONY: help setup java test test-long test-kafka test-cluster test-spark kafka kafka-stop kafka-jars bench-kafka client-retries differential soak bench bench-stateful explore report history compare scenario many-stores mutate size lint release docs clean clean-runs

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | while IFS=$$'\t' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done
	@echo
	@echo "  PROFILE=smoke (some minutes), default (ten minutes) or night (two hours, of which each run tries what others have not) for bench, BUDGET=90s, 10m, 2h or none for its time; S=name for scenario, which takes PROFILE as well"

setup: $(STAMP) ## make .venv with exactly the versions of constraints.txt

# Tests sync files and start processes, so two processors are idle for a third of the time with two files at a time.
test: $(STAMP) java ## test stores and harness, three files at a time; ARGS="-k name" passes on to pytest
	@$(PYTEST) $(call at_a_time,3 * $(WORKERS) / 2) -m "not long and not kafka and not spark" $(ARGS)

# Few files have most of these tests, so the processes take single tests from each other.
test-long: $(STAMP) $(LINT_STAMP) $(LONG_STAMP) java ## run the tests that make test leaves out: a cluster, real file systems, whole suites of packages
	@$(PYTEST) --dist worksteal -m long $(ARGS)

# The file that takes longest is in the harness: begun last, it would keep one of two processors idle. These tests wait
# for brokers, each of which is one more process that computes.
test-kafka: $(STAMP) ## run the tests that need a Kafka broker, three files at a time, on brokers that they start; needs Java and Maven; ARGS as above
	@$(VENV_PYTHON) -m stores.changelog.kafka.testing classes --folder .kafka || true # The tests that need it say so.
	@$(PYTEST) $(call at_a_time,3 * $(WORKERS) / 2) -o testpaths="harness/tests stores/tests" $(WITHOUT_CONFORMANCE) -m "kafka and not long and not cluster" $(ARGS)

test-cluster: $(STAMP) ## run the tests over three brokers, one of which is killed, stopped or cut off (ten minutes); ARGS as above
	@$(PYTEST) -o testpaths="harness/tests stores/tests/kafka" -m cluster $(ARGS)

test-spark: $(STAMP) java ## run the tests in sessions of Spark; ARGS as above
	@$(PYTEST) $(WITHOUT_CONFORMANCE) -m "spark and not long" $(ARGS)

kafka: $(STAMP) ## start a Kafka broker on loopback, with jars by Maven in .kafka/ (54 MB, once), and print its address
	@$(VENV_PYTHON) -m stores.changelog.kafka.testing start --folder .kafka

kafka-stop: $(STAMP) ## stop that broker; its data stays in .kafka/
	@$(VENV_PYTHON) -m stores.changelog.kafka.testing stop --folder .kafka

kafka-jars: $(STAMP) ## fetch the jars of Kafka and Kafka Streams by Maven into .kafka/, for the measurements that use them
	@$(VENV_PYTHON) -m stores.changelog.kafka.testing fetch --folder .kafka

bench-kafka: profile kafka-jars java ## time tasks over a Kafka broker, beside a bare loop and Kafka Streams, also in Nexmark; PROFILE=smoke|default|night, SEED=1
	@status=0; \
	 for name in throughput_over_kafka nexmark_over_kafka; do \
	   $(VENV_PYTHON) -m harness scenario $$name --profile $(PROFILE) $(call option,--seed,$(SEED)) $(ARGS) || status=1; \
	 done; exit $$status

client-retries: minutes kafka-jars java ## deliver single requests of transactions late, and drop or repeat answers; print what a bare client and tasks make of it; MINUTES=5, SEED=1, ARGS="--only EndTxn"
	@$(VENV_PYTHON) -m harness.tests.client_retries --minutes $(MINUTES) $(call option,--seed,$(SEED)) $(ARGS)

bench: profile $(STAMP) java ## time every backend, crash every backend, write the report; PROFILE=smoke|default|night, BUDGET=10m, SEED=1, BACKENDS=names; EVENTS=file KEY=column times your own events
	@$(VENV_PYTHON) -m harness bench --profile $(PROFILE) $(call option,--budget,$(BUDGET)) $(SOME) $(OWN_EVENTS) $(ARGS)

bench-stateful: $(STAMP) java ## time stateful queries on Spark, ours beside Spark's own (an hour); the report stays beside its rows, in runs/
	@$(VENV_PYTHON) -m harness bench --only stateful --budget none $(SOME) $(ARGS)

explore: hours $(STAMP) java ## try classes of crash trials, I/O faults, mutants, readers, queries and brokers, those first that no run has tried; HOURS=8
	@$(VENV_PYTHON) -m harness explore --hours $(HOURS) $(call option,--backends,$(BACKENDS)) $(ARGS)

report: $(STAMP) ## write a run's report again: a whole run's to results/, another's beside its rows; RUN=runs/NAME, else the newest
	@$(VENV_PYTHON) -m harness report $(call option,--run,$(RUN)) $(ARGS)

history: $(STAMP) ## add a whole run's line to results/history.jsonl, and leave the report there as it is; RUN=runs/NAME, else the newest
	@$(VENV_PYTHON) -m harness history $(call option,--run,$(RUN)) $(ARGS)

compare: both $(STAMP) ## compare two runs, A=RUN B=RUN (folders, or names in runs/); FAIL=5% is an error where B is worse by more
	@$(VENV_PYTHON) -m harness compare $(call quoted,$(A)) $(call quoted,$(B)) $(call option,--fail,$(FAIL)) $(ARGS)

scenario: name profile $(STAMP) java ## run one claim of scenarios/, for example S=kill_during_commit; PROFILE=night leaves nothing out
	@$(VENV_PYTHON) -m harness scenario $(call quoted,$(S)) --profile $(PROFILE) $(call option,--seed,$(SEED)) $(OWN_EVENTS) $(ARGS)

differential: minutes kafka-jars java ## give a worker and Kafka Streams the same input, kill both at random, and compare outputs, stores and offsets; MINUTES=5, SEED=1, ARGS="--topology windows"
	@$(VENV_PYTHON) -m harness.tests.differential --minutes $(MINUTES) $(call option,--seed,$(SEED)) $(ARGS)

soak: minutes $(STAMP) ## read every store while it is written to, and judge every answer; MINUTES=5, BACKENDS=names, SEED=1
	@$(VENV_PYTHON) -m harness readers --seconds $$(( 60 * $(MINUTES) )) $(SOME) $(ARGS)

many-stores: $(STAMP) ## open 5,000 stores of each backend in one process (half an hour); BACKENDS=names, ARGS="--stores 500"
	@$(VENV_PYTHON) -m harness many-stores $(call option,--backends,$(BACKENDS)) $(ARGS)

mutate: files $(STAMP) $(LINT_STAMP) ## try small changes of the code, drawn by a seed, and list those that no test detects; FILES="stores/worker stores/records/*.py", COUNT=20, SEED=1, ARGS="--all --slow"
	@$(VENV_PYTHON) -m harness.mutation $(FILES) --count $(COUNT) $(call option,--seed,$(SEED)) $(ARGS)

size: $(STAMP) ## count lines and modules of code and tests, a line for each folder; RANGE=A..B says what these commits changed
	@$(VENV_PYTHON) -m harness.size $(call option,--range,$(RANGE))

lint: $(STAMP) $(LINT_STAMP) ## ruff, mypy, the check of prose (docs/style.md), and mypy and pyright over code of users
	@status=0; \
	 $(LINT_PYTHON) -m ruff check . || status=1; \
	 $(LINT_PYTHON) -m ruff format --check --quiet stores harness scenarios docs || \
	   { echo "Not formatted: run .venv-lint/bin/ruff format stores harness scenarios docs" >&2; status=1; }; \
	 $(VENV_PYTHON) -m harness.prose || status=1; \
	 $(LINT_PYTHON) -m mypy --python-executable $(VENV_PYTHON) || status=1; \
	 $(VENV_PYTHON) -m harness.user_types || status=1; exit $$status

release: $(STAMP) $(RELEASE_STAMP) ## build sdist and wheel of both packages into dist/, check them, and try them on each Python from 3.11 to 3.13 here; uploads nothing
	@$(VENV_PYTHON) -m harness.release

docs: $(STAMP) ## the API reference, from the docstrings, in build/docs/; no warning is tolerated
	@$(VENV_PYTHON) docs/reference.py build/docs

clean: ## remove .venv, caches, .kafka and whatever else was built; nothing that is tracked, and not runs/
	@if [ -e .kafka/running ] && [ -x $(VENV_PYTHON) ]; then $(VENV_PYTHON) -m stores.changelog.kafka.testing stop --folder .kafka; fi
	@rm -rf .kafka
	@rm -rf .venv .venv-lint .venv-long .venv-release .venv.lock .spark-classes.jsa build txstores-harness/build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	@rm -rf spark-warehouse metastore_db derby.log artifacts
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

clean-runs: ## remove runs/: the rows of every run, from which reports are written
	@rm -rf runs

.PHONY: profile name minutes hours both files
files:
	@if [ -z $(call quoted,$(FILES)) ]; then echo 'Which code? For example: make mutate FILES=stores/worker COUNT=20 SEED=1' >&2; exit 2; fi

both:
	@if [ -z $(call quoted,$(A)) ] || [ -z $(call quoted,$(B)) ]; then echo "Which runs? For example: make compare A=runs/NAME B=runs/NAME FAIL=5%" >&2; exit 2; fi

minutes:
	@case $(call quoted,$(MINUTES)) in ""|*[!0-9]*|0*|???????*) echo MINUTES=$(call quoted,$(MINUTES))" is no number of minutes: give a whole number from 1 to 999999, such as MINUTES=5." >&2; exit 2;; esac

hours:
	@case $(call quoted,$(HOURS)) in ""|*[!0-9.]*|.*|*.|*.*.*) echo HOURS=$(call quoted,$(HOURS))" is no number of hours: give one such as HOURS=8 or HOURS=0.5." >&2; exit 2;; esac

profile:
	@case " $(PROFILES) " in *" "$(call quoted,$(PROFILE))" "*) ;; *) echo PROFILE=$(call quoted,$(PROFILE))" does not exist: choose one of $(PROFILES)." >&2; exit 2;; esac

name:
	@if [ -z $(call quoted,$(S)) ]; then echo "Which scenario? For example: make scenario S=kill_during_commit" >&2; \
	 for file in scenarios/[a-z]*.py; do [ -e "$$file" ] && echo "  $$(basename "$$file" .py)" >&2; done; exit 2; fi

java: $(STAMP)
	@$(VENV_PYTHON) -m stores.java

# One set-up at a time: the lock belongs to file descriptor 9, which the processes of the set-up inherit. So the system
# frees it when the last of them has ended, however that was. Python asks for it: macOS has no command for that.
LOCK := .venv.lock
SELF := $(MAKE)
locks = "$$chosen" -c 'import fcntl, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); fcntl.flock(9, fcntl.LOCK_EX$(1))'

# Asked of the interpreter itself, by running it: the name on PATH may be a shim for a version that is not there.
$(STAMP): pyproject.toml constraints.txt
	@works() { "$$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	 bundled() { "$$1" -c 'import ensurepip, venv' 2>/dev/null; }; \
	 chosen=; without_venv=; \
	 for candidate in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3); do \
	   if works "$$candidate"; then \
	     if bundled "$$candidate"; then chosen=$$candidate; break; else without_venv=$${without_venv:-$$candidate}; fi; \
	   fi; \
	 done; \
	 if [ -z "$$chosen" ] && [ -n "$$without_venv" ]; then \
	   version=$$("$$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	   echo "$$without_venv is Python $$version, but without its venv module, which .venv is made with." >&2; \
	   echo "On Debian or Ubuntu: apt-get install python$$version-venv. Then run make again." >&2; exit 1; \
	 fi; \
	 if [ -z "$$chosen" ]; then \
	   echo "No Python 3.11 or newer here (tried: $(or $(PYTHON),python3.13 python3.12 python3.11 python3))." >&2; \
	   echo "Debian 12, Ubuntu 24.04 or newer: apt-get install python3 python3-venv. Fedora: dnf install python3.12." >&2; \
	   echo "macOS: brew install python@3.13. Elsewhere: https://www.python.org/downloads/ ." >&2; \
	   echo "One that is not on PATH: make PYTHON=/path/to/python3.11" >&2; exit 1; \
	 fi; \
	 exec 9>>$(LOCK); \
	 if ! $(call locks,|fcntl.LOCK_NB) 2>/dev/null; then \
	   echo "Waiting for the set-up of .venv by another make here ($$(cat $(LOCK)))." >&2; \
	   $(call locks); \
	 fi; \
	 echo "process $$PPID, since $$(date +%T)" > $(LOCK); \
	 if [ "$$(cat $@ 2>/dev/null)" = "$$PWD" ] && [ ! pyproject.toml -nt $@ ] && [ ! constraints.txt -nt $@ ]; then exit 0; fi; \
	 CHOSEN="$$chosen" $(SELF) --no-print-directory fresh-venv

# The last retry of a request was lost: what pip says next, that there is no version of the package, is misleading.
define why_pip_failed
if grep -q 'Retrying (Retry(total=0' $(1); then \
     echo "The package index is not reachable from here: connect to the network, or set PIP_INDEX_URL to an index that is. Then run make again." >&2; \
   else tail -n 15 $(1) >&2; fi; \
   echo "Installing failed; all that pip said is in $(1)." >&2; exit 1
endef

# What "make test" does not need has an environment of its own, with the requirements of the extra of this name. Where those
# are installed already, pip asks for nothing, and no network is needed. Where .venv is made anew, the interpreter of this
# environment may have gone, too.
.venv-%/.complete: $(STAMP)
	@folder=.venv-$*; log=$$folder/install.log; export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	 $$folder/bin/python -c '' 2>/dev/null || { echo "Setting up $$folder, once."; $(VENV_PYTHON) -m venv --clear $$folder; }; \
	 $(VENV_PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$*"], sep="\n")' > $$folder/requirements.txt; \
	 $$folder/bin/python -m pip install --no-compile -c constraints.txt -r $$folder/requirements.txt > $$log 2>&1 || { $(call why_pip_failed,$$log); }; \
	 touch $@

.PHONY: fresh-venv
fresh-venv:
	@command -v java >/dev/null || [ -x "$${JAVA_HOME:-}/bin/java" ] || \
	   echo "Note: there is no Java here; all that runs on Spark will ask for version 17 or newer." >&2; \
	 echo "Setting up .venv with $$("$$CHOSEN" -V); about two minutes, once."; \
	 rm -rf .venv .spark-classes.jsa; "$$CHOSEN" -m venv .venv
	@export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	 show() { sed -un -e 's/^ *Downloading \(.*\/\)\{0,1\}\([^ ]*\) (\([0-9.]* MB\))$$/  \2, \3/p' -e 's/^ *Building wheel for \([^ ]*\).*: started$$/  building \1/p'; }; \
	 log=.venv/install.log; \
	 { $(VENV_PYTHON) -m pip install --no-compile -c constraints.txt setuptools wheel pbr && \
	   $(VENV_PYTHON) -m pip install --no-compile -c constraints.txt --no-build-isolation --use-pep517 -e '.[test,docs]' -e ./txstores-harness; } 2>&1 | tee $$log | show || { $(call why_pip_failed,$$log); }
	@$(VENV_PYTHON) -m harness.spark.installation
	@pwd > $(STAMP)
	@echo "Ready: $$($(VENV_PYTHON) -V) in .venv"
