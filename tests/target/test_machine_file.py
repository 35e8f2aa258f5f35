"""Machine files: what is written is read back, what is wrong is named, the model follows."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.cost.shortlist import choices
from polysci.errors import SpecError
from polysci.ops import parse_problem
from polysci.target import microkernels
from polysci.target.coefficients import PRIORS
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.target.machine import RATES, Machine, assume_rates
from polysci.target.machine_file import MachineFile, numbers, parse, read
from polysci.target.target import ComputeUnit, Memory, Target
from polysci.tune import context_of, optimize
from polysci.tune.calibrate import kernels_for, machine_path
from tests.support import command
from tests.support.rates import write_rates
from tests.support.samples import FIXED

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
EXPERIMENTS = Path(__file__).parents[2] / "experiments/machines"

positive = st.floats(0, 1e299, exclude_min=True)
shares = st.dictionaries(
    st.sampled_from(list(microkernels.registry())), st.floats(0, 1, exclude_min=True), max_size=4
)
words = st.text(max_size=12)


@st.composite
def targets(draw: st.DrawFn) -> Target:
    isa = draw(st.sampled_from(list(ISAS.values())))
    sizes = sorted(draw(st.tuples(*[st.integers(1, 1 << 40)] * 3)))
    cores = draw(st.integers(1, 1024))
    sharers = sorted(draw(st.tuples(*[st.integers(1, cores)] * 3)))
    sharers[2] = draw(st.sampled_from([sharers[2], 0]))
    ways, bandwidth = draw(st.integers(0, 16)), draw(st.floats(0, 1e299))
    caches = (
        Memory("L1", sizes[0], sharers[0], ways=ways),
        Memory("L2", sizes[1], sharers[1], line=128, bandwidth=bandwidth),
        Memory("L3", sizes[2], sharers[2]),
        Memory(draw(words), 1 << 34, cores=0, kind="global"),
    )
    return Target(
        isa, (*isa.features, *draw(st.lists(words, max_size=3))), caches, cores, draw(words),
        tuple(draw(st.lists(st.sampled_from(["L1", "L3", "cores", "features"]), unique=True))),
        unit=draw(st.sampled_from([ComputeUnit(), ComputeUnit(width=64, registers=1 << 17)])),
    )  # fmt: skip


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    drawn = {
        name: draw(positive if name in RATES else st.floats(0, 1e299))
        for name in numbers(assume_rates(FIXED))
    }
    values = {name: drawn.pop(name) for name in PRIORS}
    errors = draw(st.dictionaries(st.sampled_from([*PRIORS]), st.floats(0, 1e299), max_size=3))
    machine = replace(
        assume_rates(FIXED), **drawn, measured=draw(st.booleans()), efficiency=draw(shares),
        cpu=draw(words),
    )  # fmt: skip
    return machine.with_coefficients(values, errors)


@pytest.mark.exhaustive
@given(targets(), machines())
def test_what_is_written_is_read_back(target: Target, machine: Machine) -> None:
    it = MachineFile(target, machine)
    assert parse(it.to_toml()) == it
    assert parse(it.to_toml()).to_toml() == it.to_toml()


def test_every_number_has_its_unit_beside_it() -> None:
    text = MachineFile(FIXED, assume_rates(FIXED)).to_toml()
    for name in numbers(assume_rates(FIXED)):
        assert re.search(rf"^{name} = \S+  # (GFLOP/s|GB/s|[a-zA-Z0-9 ]+), \w", text, re.M), name
    assert re.search(r"^call_ns = .*, prior ± 0\S+; \w", text, re.M)
    assert re.search(r"^safe_bound = .*, prior, not fitted: \w", text, re.M)
    known = assume_rates(FIXED).with_coefficients({"call_ns": 2.0}, {"call_ns": 0.25})
    assert "call_ns = 2.0  # ns, entering a register tile, ± 0.25" in (
        MachineFile(FIXED, known).to_toml()
    )
    given = assume_rates(FIXED).with_coefficients({"call_ns": 2.0})
    assert "register tile, not fitted: given" in MachineFile(FIXED, given).to_toml()
    assert 'name = "L1"\nsize = 49152  # bytes of one: 48K' in text
    assert "assumed" in text.partition("measured = false")[2].splitlines()[0]


SHORT = 'isa = "avx2"\nl1 = 1\nl2 = 2\nl3 = 3\ncores = 4\n'
FEATURES = 'features = ["avx2", "fma", "f16c"]'
CACHES = (Memory("L1", 1), Memory("L2", 2), Memory("L3", 3, cores=0))
GOOD = f"[target]\n{SHORT}{FEATURES}\n[machine]\npeak = 90\n[machine.efficiency]\n"


def test_what_is_left_out_is_assumed() -> None:
    found = parse(f"[target]\n{SHORT}")
    assert found.target == Target(ISAS["avx2"], ("avx2", "fma", "f16c"), CACHES, 4, "unknown")
    assert found.machine == assume_rates(found.target) and not found.machine.measured
    assert parse(GOOD).machine == replace(assume_rates(found.target), peak=90.0)
    free = parse(GOOD.replace("peak = 90", "call_ns = 0")).machine
    assert free.coefficient("call_ns") == 0 and free.peak == assume_rates(found.target).peak


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("isa =", "isa", "not TOML"),
        ("[machine]", "[machines]", "machines: unknown; expected one of target, machine"),
        ("[target]", "[machine.target]", "target: expected a table [target], got nothing"),
        ('isa = "avx2"', 'isa = "mmx"', "target.isa: no instruction set 'mmx'; known: scalar,"),
        ('isa = "avx2"', "isa = 5", "target.isa: expected text in quotes, got 5"),
        (', "fma"', "", "target.features: isa avx2 needs fma as well"),
        (FEATURES, "features = 5", "target.features: expected a list of texts in quotes"),
        ("l1 = 1", "l1 = 0", "target.l1: expected a whole number from 1 to 1099511627776, got 0"),
        ("l1 = 1", "l1 = true", "target.l1: expected a whole number"),
        ("l1 = 1", 'l1 = "32K"', "target.l1: expected a whole number"),
        ("l2 = 2\n", "", "target.l2: expected a whole number from 1 to 1099511627776, got nothing"),
        ("l2 = 2", "l2 = 4", "target: L3: expected no less than L2=4 bytes, got 3"),
        ("l1 = 1", "l1 = 3", "target: L2: expected no less than L1=3 bytes, got 2"),
        ("cores = 4", "cores = 0", "target.cores: expected a whole number from 1 to 1024, got 0"),
        ("cores = 4", "cores = 1025", "target.cores: expected a whole number from 1 to 1024, got"),
        ("cores = 4", "cores = 4\nl4 = 9", "target.l4: unknown; expected one of isa, features"),
        ("cores = 4", "cores = 4\nl3_cores = 5", "target.l3_cores: expected a whole number from 0"),
        ("cores = 4", "cores = 4\nl2_cores = 2\nl3_cores = 1",
         "target: L3: expected no fewer cores than the 2 of L2, got 1"),
        ("cores = 4", 'cores = 4\nassumed = ["isa"]', "target.assumed: isa: unknown"),
        ("peak = 90", "peak = 0", "machine.peak: expected a positive number of GFLOP/s, got 0"),
        ("peak = 90", "peak = -1.5", "machine.peak: expected a positive number"),
        ("peak = 90", "peak = nan", "machine.peak: expected a positive number"),
        ("peak = 90", "peak = inf", "machine.peak: expected a positive number"),
        ("peak = 90", "peak = true", "machine.peak: expected a positive number"),
        ("peak = 90", "peak = 1" + 400 * "0", "machine.peak: expected a positive number"),
        ("peak = 90", "peak = 1" + 5000 * "0", "not TOML"),
        ("peak = 90", "peak = 0x1" + 5000 * "0",
         "machine.peak: expected a positive number of GFLOP/s, got a number of 20001 bits"),
        ("peak = 90", 'peak = "fast"', "machine.peak: expected a positive number"),
        ("peak = 90", "call_ns = -1", "machine.call_ns: expected a number of at least 0 of ns"),
        ("peak = 90", "speed = 90", "machine.speed: unknown; expected one of peak, l2"),
        ("peak = 90", 'measured = "no"', "machine.measured: expected true or false, got 'no'"),
        ("[machine.efficiency]", "efficiency = 1", "machine.efficiency: expected a table"),
        ("efficiency]\n", "efficiency]\nbrgemm_mmx_f32_1x1 = 1",
         "machine.efficiency: no kernel 'brgemm_mmx_f32_1x1' in microkernels/kernels.def"),
        ("efficiency]\n", "efficiency]\nbrgemm_avx512bf16_bf16_14x32 = 65",
         "machine.efficiency.brgemm_avx512bf16_bf16_14x32: expected a share of the peak, at most"),
        ("efficiency]\n", "efficiency]\nbrgemm_avx512_f32_14x32 = 1.5",
         "machine.efficiency.brgemm_avx512_f32_14x32: expected a share of the peak, at most 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(SpecError, match=re.escape(f"here.toml: {message}")):
        parse(GOOD.replace(old, new), "here.toml")


NAMED = (
    'isa = "avx2"\ncores = 4\nassumed = ["L2"]\n'
    '[[target.memories]]\nname = "L1"\nsize = 1\nways = 8\n'
    '[[target.memories]]\nname = "L2"\nsize = 2\ncores = 0\n'
    '[[target.memories]]\nname = "local"\nsize = 9\nkind = "local"\n'
)


def test_memories_are_a_list_of_tables() -> None:
    target = parse(f"[target]\n{NAMED}").target
    assert target.memories == (
        Memory("L1", 1, ways=8), Memory("L2", 2, cores=0), Memory("local", 9, kind="local"),
    )  # fmt: skip
    assert [cache.name for cache in target.caches] == ["L1", "L2"]
    assert target.last_level == target.memory("L2") and target.assumed == ("L2",)
    assert (target.sharing("L2", 3), target.share("L2", 4)) == (3, 0.5)
    with pytest.raises(SpecError, match="memory 'L3': unknown has L1, L2, local"):
        target.memory("L3")


def test_every_target_has_the_levels_of_the_model() -> None:
    caches = tuple(Memory(f"C{at}", at, bandwidth=10.0 * at) for at in (1, 2, 3, 4))
    for count, levels in enumerate([(1, 1, 1), (1, 2, 2), (1, 2, 3), (1, 2, 4)], 1):
        target = replace(FIXED, memories=caches[:count])
        assert tuple(cache.size for cache in target.levels) == levels
        rates = assume_rates(target)
        assert (rates.l2, rates.l3, rates.memory) == (
            20.0 if count > 1 else 12.0, 10.0 * levels[2] if count > 2 else 12.0, 12.0
        )  # fmt: skip


def test_a_target_has_a_cache() -> None:
    with pytest.raises(SpecError, match="memories: expected one of kind cache at least, got local"):
        replace(FIXED, memories=(Memory("local", 9, kind="local"),))
    table = '[[target.memories]]\nname = "local"\nsize = 9\nkind = "local"\n'
    with pytest.raises(SpecError, match="expected one of kind cache at least"):
        parse(f'[target]\nisa = "avx2"\ncores = 4\n{table}', "here.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cores = 4", "cores = 4\nl1 = 1", "target.l1: expected no such key beside [[target.mem"),
        ("size = 9", "size = 0", "target.memories[2].size: expected a whole number from 1"),
        ("cores = 0", "cores = 5", "target.memories[1].cores: expected a whole number from 0 to 4"),
        ('name = "L2"', 'name = "L1"', "target.memories[1].name: a second 'L1'"),
        ('name = "L2"\n', "", "target.memories[1].name: expected text in quotes, got nothing"),
        ("ways = 8", "speed = 8", "target.memories[0].speed: unknown; expected one of name, size"),
        ("ways = 8", "bandwidth = -1", "target.memories[0].bandwidth: expected a number of at l"),
        ('kind = "local"', 'kind = "fast"', "target.memories[2].kind: expected one of cache, lo"),
        ('["L2"]', '["L3"]', "target.assumed: L3: unknown; expected one of features, l1, l2"),
        ("cores = 4", "cores = 4\nunit = 4", "target.unit: expected a table [target.unit], got 4"),
        ("cores = 4", "cores = 4\nunit.width = 0", "target.unit.width: expected a whole number fr"),
        ("cores = 4", "cores = 4\nunit.wide = 1", "target.unit.wide: unknown; expected one of wi"),
    ],
)  # fmt: skip
def test_a_wrong_memory_is_named(old: str, new: str, message: str) -> None:
    assert old in NAMED
    with pytest.raises(SpecError, match=re.escape(f"here.toml: {message}")):
        parse(f"[target]\n{NAMED.replace(old, new, 1)}", "here.toml")


def test_memories_must_be_tables() -> None:
    with pytest.raises(SpecError, match=r"target\.memories: expected \[\[target\.memories\]\]"):
        parse('[target]\nisa = "portable"\ncores = 1\nmemories = 5')


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no\.toml: cannot be read: No such file"):
        read(tmp_path / "no.toml")
    (tmp_path / "image.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"image\.toml: cannot be read: not a text file"):
        read(tmp_path / "image.toml")


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_machines_of_the_experiments_are_valid(path: Path) -> None:
    found = read(path)
    assert not found.machine.measured, "they come from data sheets"
    assert parse(found.to_toml()) == found


@pytest.mark.exhaustive
def test_explain_shows_the_described_machine(described: Path) -> None:
    ran = polysci("explain", LAYER, "--json", "--machine", str(described))
    assert ran.returncode == 0, ran.stderr
    row = json.loads(ran.stdout)
    assert row["machine"] == str(FIXED) and row["peak_gflops"] == assume_rates(FIXED).peak
    assert row["origin"] == "estimate" and row["measured_seconds"] is None


def test_the_model_works_for_a_machine_that_is_not_this_one() -> None:
    fast = MachineFile(FIXED, assume_rates(FIXED))
    slow = replace(fast, machine=replace(fast.machine, peak=fast.machine.peak / 10))
    problem = parse_problem(LAYER, "nhwc")
    seconds = [
        choices(context_of(problem, 2, it.target, machine=it.machine), 1)[0].seconds
        for it in (fast, slow)
    ]
    assert seconds[1] > 3 * seconds[0]


@pytest.mark.parametrize("level", ["measure", "patient", "exhaustive"])
def test_nothing_is_measured_on_a_described_machine(level: str) -> None:
    with pytest.raises(SpecError, match=f"level '{level}': nothing runs on a described machine"):
        optimize(parse_problem(LAYER, "nhwc"), level, target=FIXED, machine=assume_rates(FIXED))


def polysci(
    *words: str, cc: str = "", cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    env = {"CC": cc, "POLYSCI_CACHE_DIR": str(cache or "")}
    return command.polysci(*words, **{name: value for name, value in env.items() if value})


@pytest.fixture
def described(tmp_path: Path) -> Path:
    path = tmp_path / "other.toml"
    path.write_text(MachineFile(FIXED, assume_rates(FIXED)).to_toml())
    return path


def test_an_estimate_for_a_described_machine_compiles_and_measures_nothing(
    described: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "empty"
    cache.mkdir(mode=0o700)
    words = ("optimize", LAYER, "--level", "estimate", "--machine", str(described), "--json")
    ran = polysci(*words, cc="/nonexistent/cc", cache=cache)
    assert ran.returncode == 0, ran.stderr
    row = json.loads(ran.stdout.splitlines()[0])
    assert "avx512" in row["schedule"] and row["predicted_seconds"] > 0 and row["seconds"] is None
    assert not [path for path in cache.rglob("*") if path.suffix in (".so", ".json")]


@pytest.mark.parametrize("words", [("optimize", LAYER), ("export", LAYER, "-o", "out")])
def test_measuring_levels_say_what_to_use(described: Path, words: tuple[str, ...]) -> None:
    ran = polysci(*words, "--machine", str(described))
    assert ran.returncode == 2 and ran.stdout == ""
    assert "level 'measure'" in ran.stderr and "use 'estimate'" in ran.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("optimize", LAYER, "--level", "estimate", "--isa", "avx2"), "change its isa"),
        (("machine", "--calibrate"), "--calibrate"),
        (("bench", LAYER, "--against", "torch"), "unrecognized arguments: --machine"),
    ],
)
def test_what_does_not_go_with_a_machine_file(
    described: Path, words: tuple[str, ...], told: str
) -> None:
    ran = polysci(*words, "--machine", str(described))
    assert ran.returncode == 2 and told in ran.stderr and "Traceback" not in ran.stderr


def test_a_bad_machine_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[target]\ncores = 0\n")
    ran = polysci("optimize", LAYER, "--level", "estimate", "--machine", str(path))
    assert ran.returncode == 2
    assert f"machine file {path}: target.isa: expected text" in ran.stderr


def test_machine_writes_what_machine_shows(tmp_path: Path, fresh_cache: Path) -> None:
    """The stored rates, or the assumed ones where there are none; either can be read back."""
    path = tmp_path / "here.toml"
    kernel = str(kernels_for(detect().isa.name, "f32")[0])
    here = replace(assume_rates(detect()), measured=True, efficiency={kernel: 0.5})
    write_rates(here, detect(), "f32")
    ran = polysci("machine", "-o", str(path))
    assert ran.returncode == 0 and read(path).machine.measured, ran.stderr
    assert read(path).target == detect()
    again = polysci("machine", "--machine", str(path), "--kernels")
    assert str(path) in again.stdout and "brgemm_" in again.stdout
    machine_path(detect()).unlink()
    ran = polysci("machine", "-o", str(path))
    assert "with assumed rates" in ran.stderr
    assert read(path) == MachineFile(detect(), assume_rates(detect()))
