# make resnet50: optimise ResNet-50's convolutions on this machine.  make test: run the tests.
# make test-all: what make test leaves out, and a part of the tests on imitated lesser CPUs;
# with SHARE=0/12 a twelfth of what is left out.
# make test-torch: the tests of make test that need PyTorch, which it installs, with torchao and
# transformers.
# make docs: build the documentation in docs/_build/html; warnings are errors.
PYTHON ?= python3
PYTEST = .venv/bin/python -m pytest -n 2 --dist worksteal --durations=10
CAPS = portable $(if $(filter x86_64,$(shell uname -m)),avx2 avx512)
CAPPED = tests/space tests/target tests/cli/test_isa_cap.py tests/cli/test_doctor.py
TORCH_TESTS = tests/torch tests/training/test_torch.py tests/peers/test_torch_modules.py \
	$(patsubst %,'tests/project/test_documents.py::test_python[docs/%.md]',tutorial_pytorch \
	howto/pytorch howto/when_not) \
	$(addprefix tests/graph/,operators/test_one_row.py operators/test_table.py) \
	$(addprefix tests/graph/gradients/,test_autograd.py test_compiled.py test_training_nodes.py)
# Python compiles each module when it is first imported: pip need not compile them all, but each
# process would do so again if none could keep the bytecode.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(PYTHON) -m venv .venv && .venv/bin/python -m pip install --quiet --no-compile --editable

resnet50: .venv/installed
	.venv/bin/polysci optimize models/resnet50.txt --threads 1
	@if .venv/bin/python -c "import torch" 2>/dev/null; \
	then .venv/bin/polysci bench models/resnet50.txt --against torch --threads 1; \
	elif .venv/bin/python -m pip show --quiet onednn-cpu-gomp 2>/dev/null; \
	then .venv/bin/polysci bench models/resnet50.txt --against onednn --threads 1; \
	else echo "To compare with oneDNN: .venv/bin/pip install onednn-cpu-gomp, and make resnet50" \
	"again; its last wheel has oneDNN 3.2 of 2023. With PyTorch's: .venv/bin/pip install" \
	"'.[peers]'."; fi

test: .venv/installed-dev
	$(PYTEST)

test-all: .venv/installed-dev
	$(PYTEST) -m "exhaustive and not slow and not perf" $(if $(SHARE),--share $(SHARE))
	for isa in $(CAPS); do POLYSCI_ISA=$$isa $(PYTEST) $(CAPPED) || exit 1; done

test-torch: .venv/installed-dev .venv/installed-torch
	$(PYTEST) $(TORCH_TESTS)

.venv/installed: pyproject.toml | tools
	$(INSTALL) . && touch $@

.venv/installed-dev: pyproject.toml | tools
	$(INSTALL) '.[dev]' && touch $@

.venv/installed-torch: pyproject.toml | tools
	$(INSTALL) '.[torch]' torchao==0.18.0 transformers==4.57.1 && touch $@

docs: .venv/installed-docs
	.venv/bin/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html

.venv/installed-docs: pyproject.toml | tools
	$(INSTALL) '.[docs]' && touch $@

tools:
	@$(PYTHON) -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || \
	{ echo "polysci needs Python 3.11 or newer with its venv module; $(PYTHON) is not that. Install" \
	"it (Debian, Ubuntu: apt install python3-venv; Fedora: dnf install python3; Alpine: apk add" \
	"python3) or name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; } >&2
	@command -v $${CC:-cc} >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || \
	{ echo "polysci needs a C compiler; there is no cc, gcc or clang. Install one (Debian, Ubuntu:" \
	"apt install gcc; Fedora: dnf install gcc; Alpine: apk add gcc musl-dev) or name one in CC."; \
	exit 1; } >&2

.PHONY: resnet50 test test-all test-torch docs tools
