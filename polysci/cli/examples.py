"""Examples that close the help of every command; a test parses each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

EXAMPLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "optimize": (
            "polysci optimize mb1ic64ih56oc64kh3ph1",
            "polysci optimize resnet50 --threads 2 --time-limit 600",
            "polysci optimize resnet50 --scheduler tcp://192.0.2.1:8786",
        ),
        "compile": (
            "polysci compile model.onnx",
            "polysci compile model.onnx -o model --dim batch=1 --value rate=16000",
            "polysci compile model.onnx --compare onnxruntime,openvino",
        ),
        "bench": (
            "polysci bench mb1ic64ih56oc64kh3ph1 --against torch",
            "polysci bench resnet50 --against torch --dtype int8 --json -o bench.json",
            "polysci bench resnet50 --against torch,onednn --cold",
        ),
        "rank": (
            "polysci rank --list",
            "polysci rank mb1ic64ih56oc64kh3ph1 --ranker traffic --ranker polydl",
            "polysci rank mb1ic64ih56oc64kh3ph1 --measure --top 5",
        ),
        "explain": (
            "polysci explain mb1ic64ih56oc64kh3ph1",
            "polysci explain mb1ic64ih56oc64kh3ph1 --isa neon --source",
            "polysci explain model.onnx",
        ),
        "report": (
            "polysci report resnet50 --level estimate -o resnet50.html",
            "polysci report resnet50 --threads 2 -o resnet50.html",
        ),
        "check": (
            "polysci check mb1ic64ih56oc64kh3ph1",
            "polysci check mb1ic64ih56oc64kh3ph1 --all 5 --mode exact",
        ),
        "export": (
            "polysci export resnet50 -o resnet50",
            "polysci export mb1ic64ih56oc64kh3ph1 --isas avx512,avx2,portable -o layer",
            "polysci export mb1ic64ih56oc64kh3ph1 --python -o layer",
        ),
        "wisdom": (
            "polysci wisdom list",
            "polysci wisdom export wisdom.json",
            "polysci wisdom import wisdom.json",
        ),
        "learn": (
            "polysci learn",
            "polysci learn --threads 1 --json",
        ),
        "machine": (
            "polysci machine",
            "polysci machine --calibrate --kernels",
            "polysci machine -o here.toml",
        ),
        "farm": (
            "polysci farm worker tcp://192.0.2.1:8786",
            "polysci farm status tcp://192.0.2.1:8786",
        ),
        "conformance": (
            "polysci conformance",
            "polysci conformance --match test_resize --isa portable",
        ),
        "doctor": (
            "polysci doctor",
            "polysci doctor --isa avx2",
        ),
    }
)  # fmt: skip


def epilog(command: str) -> str:
    """The examples of a command, a line each."""
    return "\n".join(["examples:", *(f"  {line}" for line in EXAMPLES[command])])
