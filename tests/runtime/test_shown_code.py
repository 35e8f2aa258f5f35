"""``ir``, ``source`` and ``asm`` of primitives and of networks, pickled ones among them."""

import pickle
import shutil
from pathlib import Path

import pytest

import polysci
from polysci.errors import BuildError
from polysci.loop_ir.nodes import For, walk_statements
from polysci.runtime.build import process
from polysci.runtime.build.cache import assemble
from polysci.runtime.build.compiler import default_flags
from tests.support.compiling import ISA, compiled, saved, tiny


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_a_primitive(algorithm: str) -> None:
    prim = polysci.compile("mb1ic16ih8oc16oh8kh3ph1", "estimate", isa=ISA, algorithm=algorithm)
    entry = prim.ir.functions["primitive"]
    assert entry.comment == f"primitive: {prim.schedule}"
    loops = [
        statement for function in prim.ir.functions.values()
        for statement in walk_statements(function.body) if isinstance(statement, For)
    ]  # fmt: skip
    assert loops and all(function in prim.source.file for function in prim.ir.functions)
    again = pickle.loads(pickle.dumps(prim))
    assert again.ir == prim.ir and again.source.file == prim.source.file


def test_assembly_is_made_with_the_flags_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    prim = polysci.compile("mm:8x8x8", "estimate", isa=ISA, flush_denormals=False)
    calls, run = [], process.run

    def record(words, **options):  # type: ignore[no-untyped-def]
        calls.append(words)
        return run(words, **options)

    monkeypatch.setattr(process, "run", record)
    assert "\nprimitive_packed_size:\n" in prim.asm
    words = calls[-1]  # others ask the compiler about OpenMP
    assert {*default_flags(), "-S", "-DPS_KEEP_DENORMALS"} <= {*words} and "-shared" not in words


def test_a_text_without_assembly_is_kept() -> None:
    with pytest.raises(BuildError, match="error: ") as caught:
        assemble(["no C at all\n"])
    kept = Path(str(caught.value).split()[-1])
    assert kept.read_text(encoding="utf-8") == "no C at all\n"


@pytest.mark.exhaustive
def test_a_network_and_one_of_a_pickle(tmp_path: Path) -> None:
    first = compiled(saved(tiny(), tmp_path / "tiny.onnx"))
    assert {"tiny_stages", "tiny_s3", "tiny_l0", "tiny_l0_t0"} <= {*first.ir.functions}
    again = pickle.loads(pickle.dumps(first))
    assert again.ir == first.ir and again.source == first.source
    shutil.rmtree(tmp_path)
    assert "/* tiny.c */" in again.asm
