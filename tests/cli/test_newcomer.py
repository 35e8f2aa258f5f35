"""What somebody new types: nothing, other spellings, misspelt words, no compiler."""

import json
import platform
import shlex
from pathlib import Path

import pytest

from tests.support.command import done, polysci

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
ESTIMATE = ("--level", "estimate", "--json")
FOREIGN = "avx2" if platform.machine() == "aarch64" else "neon"

pytestmark = pytest.mark.usefixtures("fresh_cache")


def problem(*words: str) -> dict[str, object]:
    """The first layer of an estimate."""
    first: dict[str, object] = json.loads(done("optimize", *words, *ESTIMATE).splitlines()[0])
    return first


def test_no_words_print_the_help() -> None:
    assert done() == done("--help")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("optimize", "polysci optimize: error: the following arguments are required: SPEC|FILE "),
        ("optimise x", "; did you mean 'optimize'? (polysci --help)"),
        ("wisdom lst", "; did you mean 'list'? (polysci wisdom --help)"),
        (f"optimize {LAYER} --treads 2", "--treads 2; did you mean '--threads'"),
        (f"optimize {LAYER} --layout NHCW", "did you mean 'nhwc' or 'nchw'? (polysci optimize --h"),
        (f"optimize {LAYER} --isa avx215", "; did you mean 'avx512'"),
        (f"optimize {LAYER} --dtype fp23", "; did you mean 'fp32'?"),
        (
            "optimize lstm:T5xN1xC8xK8",
            "is a network, not a layer: polysci compile 'lstm:T5xN1xC8xK8'",
        ),
        ("optimize vgg61", "'vgg61' is neither a layer nor a network; did you mean 'vgg16'?"),
        ("compile x.onnx --dtype int8", "argument --dtype: 'int8' is none of f32, bf16 "),
        *(
            (f"{command} Net.ONNX", "Net.ONNX: a whole model, not a list of layers: polysci compil")
            for command in ("optimize", "rank", "check", "bench --against torch", "export -o out")
        ),
    ],
)
def test_an_error_is_one_line_that_says_what_to_type(words: str, told: str) -> None:
    ran = polysci(*shlex.split(words))
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.count("\n") == 1 and told in ran.stderr


@pytest.mark.parametrize(
    ("text", "told"), [("ic8hi10oc24kh3", "did you mean 'ih'?"), ("IC8ih10oc24kh3", "'ic'")]
)
def test_misspelt_words_of_a_layer(text: str, told: str) -> None:
    ran = polysci("optimize", text)
    assert ran.returncode == 2 and told in ran.stderr.splitlines()[-1]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "schedule"),
    [("float32", "_f32_"), ("FP32", "_f32_"), ("half", "_f16_"), ("BFloat16", "_bf16_")],
)
def test_other_spellings_of_precisions(name: str, schedule: str) -> None:
    asked = problem(LAYER, "--dtype", name, "--isa", "PORTABLE")
    plain = problem(LAYER, "--dtype", schedule.strip("_"), "--isa", "portable")
    assert asked["schedule"] == plain["schedule"]


@pytest.mark.exhaustive
def test_names_in_any_case() -> None:
    assert problem(LAYER, "--layout", "NCHW")["layout"] == "nchw"
    first, second = (
        polysci("optimize", name, "--level", "wisdom-only").stdout
        for name in ("ResNet50", "resnet50")
    )  # no records: a line a layer says so
    assert first == second and "conv1" in first


@pytest.mark.parametrize("command", ["optimize", "check", "export -o out --level measure"])
def test_a_missing_compiler_is_said_once(command: str) -> None:
    ran = polysci(*shlex.split(command), LAYER, "mb1ic8ih12oc24oh12kh3ph1", CC="/no/such/cc")
    assert ran.returncode == 1 and ran.stdout == ""
    assert (ran.stdout + ran.stderr).count("no such program") == 1


@pytest.mark.exhaustive
@pytest.mark.usefixtures("uncapped")
def test_one_foreign_instruction_set_by_either_option(tmp_path: Path) -> None:
    texts = []
    for option in ("--isa", "--isas"):
        out = tmp_path / option.strip("-") / "net"
        out.parent.mkdir()
        ran = polysci("export", LAYER, "-o", str(out), option, FOREIGN)
        assert ran.returncode == 0, ran.stderr
        assert f"{FOREIGN}: this CPU does not run it" in ran.stderr
        texts.append((out / "net.c").read_text())
    assert f"_{FOREIGN}_f32_" in texts[0] and texts[0] == texts[1]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("uncapped")
def test_a_foreign_instruction_set_is_predicted_where_nothing_runs() -> None:
    assert f"_{FOREIGN}_" in str(problem(LAYER, "--isa", FOREIGN)["schedule"])
    assert f"_{FOREIGN}_" in done("explain", LAYER, "--isa", FOREIGN)
    assert f"_{FOREIGN}_" in done("rank", LAYER, "--isa", FOREIGN, "--ranker", "traffic")
    ran = polysci("rank", LAYER, "--isa", FOREIGN, "--measure")
    assert ran.returncode == 2 and f"which has no {FOREIGN}" in ran.stderr
    ran = polysci("export", LAYER, "--isa", FOREIGN, "--python", "-o", "unused")
    assert ran.returncode == 2 and f"which has no {FOREIGN}" in ran.stderr
