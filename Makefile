# dew_nb: everything a newcomer needs is `make demo` and `make test`.
# Python 3.10 or newer and make are enough; the rest goes into .venv, at the versions of constraints.txt.

PYTHON  ?= python3
VENV    ?= .venv
# vLLM lives in an environment of its own (Python 3.11 or newer)
SERVE   ?= .venv-serve
EXTRAS  ?= offline,eval,serve,files,c2pa,docs,dev
# Another package index for torch, such as https://download.pytorch.org/whl/cpu (smaller than the default on Linux).
TORCH_INDEX ?=
# Steps of `make test`; all of them unless named: make test STEPS="clean export docs"
STEPS   ?=

BIN     := $(VENV)/bin
PY      := $(BIN)/python
STAMP   := $(VENV)/.dew_nb-setup
PIP     := $(PY) -m pip install --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt
# The notebooks' own directory is their working directory, so the tools are called by absolute path.
export PATH := $(abspath $(BIN)):$(PATH)
export TOKENIZERS_PARALLELISM := false
# threads that wait must not spin: on few cores, spinning ones starve the others
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help setup demo test long-test scale-test serve-test docs readme export clean distclean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the pinned packages (once; again only when the pins change)

$(STAMP): constraints.txt settings.ini setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 10) and f"Python 3.10 or newer is needed, $(PYTHON) is {v[0]}.{v[1]}. Try: make PYTHON=python3.11 setup")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Could not create $(VENV). On Debian and Ubuntu: apt install python3-venv, then again." >&2; exit 1; }
	$(PIP) --upgrade pip setuptools wheel
	$(PIP) --no-build-isolation -e ".[$(EXTRAS)]"
	@touch $@

demo: setup ## Mark and detect three texts, write demo.html
	$(PY) -m dew_nb.shell.demo

test: setup ## Run every quick check: notebooks, export, README, tests, docs
	$(PY) tools/run_tests.py $(STEPS)

long-test: setup ## Run what `make test` leaves out: statistical evidence, stored scores
	$(PY) tools/run_tests.py --long $(STEPS)

# Ray and Triton are large, and MarkLLM asks for old releases of what it hardly uses: they lie in a folder of their own beside .venv
SCALE      := .scale
SCALE_PINS := ray==2.60.0 msgpack==1.2.4 protobuf==7.36.2 markllm==0.1.5 triton==3.9.0

$(SCALE)/.done: Makefile $(STAMP)
	rm -rf $(SCALE)
	$(PIP) --no-deps --target $(SCALE) $(SCALE_PINS)
	@touch $@

scale-test: setup $(SCALE)/.done ## Run the tests of Ray, MarkLLM and the GPU kernels, installed into .scale/
	PYTHONPATH=$(CURDIR):$(CURDIR)/$(SCALE) $(PY) -m pytest -q tests/test_ray.py tests/test_markllm.py tests/test_kernels.py

serve-test: $(SERVE)/.dew_nb-setup ## Start a vLLM server with the mark, ask it, detect its answers
	$(SERVE)/bin/python tools/serve_test.py

$(SERVE)/.dew_nb-setup: tools/serve_env.py constraints-serve.txt settings.ini setup.py
	$(PYTHON) tools/serve_env.py $(SERVE)
	@touch $@

docs: setup ## Build the site into _docs/ (open _docs/index.html)
	$(PY) tools/docs_site.py

readme: setup ## Write README.md from nbs/index.ipynb
	$(PY) tools/readme.py

export: setup ## Clean the notebooks, write dew_nb/*.py and README.md from them
	$(BIN)/nbdev_clean
	$(BIN)/nbdev_export
	$(PY) tools/readme.py

clean: ## Remove what was built (keeps .venv and the model cache)
	rm -rf _docs _proc _proc_sphinx build dist .pytest_cache demo.html demo.dew *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -not -path './$(SERVE)/*' -prune -exec rm -rf {} +

distclean: clean ## Remove .venv, .venv-serve and .scale too
	rm -rf $(VENV) $(SERVE) $(SCALE)
