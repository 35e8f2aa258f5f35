"""What the tests of PyTorch share."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """TorchDynamo without the graphs of other tests; nobody imports it for this."""
    _forget_graphs()
    yield
    _forget_graphs()


def _forget_graphs() -> None:
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
