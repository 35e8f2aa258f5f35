"""benchdnn's words: defaults, derived values, the canonical echo, a message for every misuse."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polysci.errors import SpecError, UnsupportedError
from polysci.ops import OPS, parse_problem
from polysci.ops.convolutions import Conv2d

SQUARE = "ic3ih8oc4kh3"
LABELS = [
    ('n"res2a"', "res2a", 1),
    ('n"res2a*3"', "res2a", 3),
    ('n"res2a"*3', "res2a", 3),
    ("nres2a", "res2a", 1),
    ("nres2a*3", "res2a", 3),
    ('_n"res2a"', "res2a", 1),
    ('n"*6"', "", 6),
    ("*6", "", 6),
    ('n""', "", 1),
    ('n"a b; rm -rf / ic3 n*x é"', "a b; rm -rf / ic3 n*x é", 1),
    (r'n"a\"b"', 'a"b', 1),
    (r'n"a\\"', "a\\", 1),
    (r'n"a\b\\\"*2*3"', 'a\\b\\"*2', 3),
    (r"na\b", r"a\b", 1),
    ('n"*3*1"', "*3", 1),
]


@st.composite
def problems(draw: st.DrawFn) -> Conv2d:
    """Any small convolution; outputs computed, cropped or extended."""
    small = st.integers(1, 9)
    groups = draw(st.integers(1, 3))
    square = draw(st.booleans())

    def two(values: st.SearchStrategy[int]) -> tuple[int, int]:
        first = draw(values)
        return first, first if square else draw(values)

    (h, w), (r, s) = two(st.integers(9, 30)), two(st.integers(1, 3))
    p, q = two(small) if draw(st.booleans()) else (None, None)
    return Conv2d(
        N=draw(st.integers(0, 4)),
        C=groups * draw(small),
        H=h,
        W=w,
        K=groups * draw(small),
        R=r,
        S=s,
        stride=two(small),
        pad=two(st.integers(0, 4)),
        dilation=two(st.integers(1, 4)),
        groups=groups,
        P=p,
        Q=q,
        name=draw(
            st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(' "*3n_\\'))
        ),
        multiplicity=draw(small),
    )


@pytest.mark.exhaustive
@given(problems())
def test_round_trip(problem: Conv2d) -> None:
    assert Conv2d.parse(str(problem)) == problem
    assert str(parse_problem(str(problem), "nchw")) == str(problem)


@pytest.mark.exhaustive
@given(problems())
def test_key_leaves_out_what_does_not_change_the_work(problem: Conv2d) -> None:
    assert problem.with_(name="other", multiplicity=7).key == problem.key
    assert problem.with_(layout="nchw").key != problem.key


@given(st.text(st.sampled_from('gmbicdhwoksp0123456789_n"\\*- ٣é')) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert Conv2d.parse(str(problem := Conv2d.parse(text))) == problem
    except (SpecError, UnsupportedError) as error:
        assert "^" in str(error).splitlines()[2]


@pytest.mark.parametrize(
    ("words", "canonical"),
    [
        # as oneDNN's driver echoes them
        ("mb1ic64ih56oc64oh56kh3ph1", "mb1ic64ih56oc64oh56kh3ph1"),
        (SQUARE, "ic3ih8oc4oh6kh3ph0"),
        ("mb2_ic3_ih8_oc4_kh3_", "ic3ih8oc4oh6kh3ph0"),
        ("kh3oc4ih8ic3mb1g1", "mb1ic3ih8oc4oh6kh3ph0"),
        ("ic3ih227iw227_oc96oh55ow55_kh11kw11_sh4sw4ph0pw0", "ic3ih227oc96oh55kh11sh4ph0"),
        (
            "mb1ic3oc64_ih300oh150kh7sh2dh0ph3_iw300ow150kw7sw2dw0pw3",
            "mb1ic3ih300oc64oh150kh7sh2ph3",
        ),
        ("ic8ih9iw7oc8kh1kw7ph0pw3", "ic8ih9iw7oc8oh9ow7kh1kw7ph0pw3"),
        ("ic8ih9iw7oc8kh3kw3sh2ph1pw1", "ic8ih9iw7oc8oh5ow7kh3kw3sh2sw1ph1pw1"),
        ("g8ic8ih9oc8kh3dh1ph2", "g8ic8ih9oc8oh9kh3ph2dh1"),
        ("ic3ih8oc4kh3*4", 'ic3ih8oc4oh6kh3ph0n"*4"'),
        ("mb007ic03ih08oc4kh3", "mb7ic3ih8oc4oh6kh3ph0"),
        # an output without padding: half of what is missing, rounded towards zero
        ("ic3ih8oc4oh8kh3", "ic3ih8oc4oh8kh3ph1"),
        ("ic3ih224oc4oh112kh3sh2", "ic3ih224oc4oh112kh3sh2ph0"),
        ("ic3ih224oc4oh112kh7sh2", "ic3ih224oc4oh112kh7sh2ph2"),
        ("ic3ih56oc4oh28kh1sh2", "ic3ih56oc4oh28kh1sh2ph0"),
        ("ic3ih8oc4oh8kh3dh1", "ic3ih8oc4oh8kh3ph2dh1"),
        # no h at all: height 1; depth words that say nothing
        ("ic3iw8oc4kw3", "ic3ih1iw8oc4oh1ow6kh1kw3ph0pw0"),
        ("ic3iw8oc4kw3sh1ph0dh0", "ic3ih1iw8oc4oh1ow6kh1kw3ph0pw0"),
        ("ic3ih8oc4kh3sw1pw0dw0", "ic3ih8oc4oh6kh3ph0"),
        ("ic3id1ih8iw8oc4od1kd1kh3kw3sd1pd0dd0", "ic3ih8oc4oh6kh3ph0"),
        ("ic3ih8oc4kh3pd0sd1dd0", "ic3ih8oc4oh6kh3ph0"),
        (f"  {SQUARE}\n", "ic3ih8oc4oh6kh3ph0"),
        ("mb0ic3ih8oc4kh3", "mb0ic3ih8oc4oh6kh3ph0"),
    ],
)
def test_canonical_echo(words: str, canonical: str) -> None:
    assert str(Conv2d.parse(words)) == canonical
    assert str(Conv2d.parse(canonical)) == canonical


def test_defaults() -> None:
    problem = Conv2d.parse(SQUARE)
    assert problem == Conv2d(2, 3, 8, 8, 4, 3, 3)
    assert (problem.stride, problem.pad, problem.dilation, problem.groups) == (
        (1, 1),
        (0, 0),
        (1, 1),
        1,
    )


def test_asymmetric_padding() -> None:
    problem = Conv2d.parse("mb1ic3ih224oc8oh112kh3sh2ph0")
    assert (problem.pad, problem.pad_end) == ((0, 0), (1, 1))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("matmul:4x4x4", "unknown operator 'matmul'; its word is 'mm'"),
        ("bwd_q mb1ic3ih8oc4kh3", "unknown operator 'bwd_q'; did you mean 'bwd_"),
        ("conv mb1ic3ih8oc4kh3", "unknown operator 'conv'\n"),
        ("lstm", "A text begins with conv1d, .* or is words of a convolution"),
    ],
)
def test_unknown_operators(words: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_problem(words)


@pytest.mark.parametrize("words", ["bwd_d mb1ic3", "bwd_w conv1d mb1ic3", "bwd_d:deconv ic3"])
def test_errors_show_the_whole_text(words: str) -> None:
    with pytest.raises(SpecError, match="oc is missing") as refused:
        parse_problem(words)
    _, shown, caret, *_ = str(refused.value).split("\n")
    assert shown == f"    {words}" and caret.index("^") > len("    bwd_d")


@pytest.mark.parametrize(("label", "name", "multiplicity"), LABELS)
def test_name_and_multiplicity(label: str, name: str, multiplicity: int) -> None:
    problem = Conv2d.parse(SQUARE + label)
    assert (problem.name, problem.multiplicity) == (name, multiplicity)
    assert Conv2d.parse(str(problem)) == problem


@pytest.mark.parametrize(
    ("words", "column", "message"),
    [
        ("", 1, "no words"),
        ("   ", 1, "no words"),
        ("ic3ih8oc4kx3", 10, "unknown word 'kx3'"),
        ("ic3ih8__oc4kh3", 8, "unknown word '_oc4kh3'"),
        ("_ic3ih8oc4kh3", 1, "unknown word"),
        ("ic3 ih8oc4kh3", 4, "unknown word ' ih8oc4"),
        ("IC3ih8oc4kh3", 1, "unknown word 'IC3ih8oc'"),
        ("3*ic3ih8oc4kh3", 1, "unknown word"),
        ("ic3ih8oc4kh3ic3", 13, "ic is repeated"),
        ("ic3ih8oc4kh", 10, "kh has no number"),
        ("ic+3ih8oc4kh3", 1, "ic has no number"),
        ("ic-3ih8oc4kh3", 1, "ic-3 must not be negative"),
        ("ic3ih8oc4kh3ph-1", 13, "ph-1 must not be negative"),
        ("ic0ih8oc4kh3", 1, "ic0 must be positive"),
        ("ic3ih0oc4kh3", 4, "ih0 must be positive"),
        ("ic3ih8oc4oh0kh3", 10, "oh0 must be positive"),
        ("ic3ih8oc4kh0", 10, "kh0 must be positive"),
        ("ic3ih8oc4kh3sh0", 13, "sh0 must be positive"),
        ("g0ic3ih8oc4kh3", 1, "g0 must be positive"),
        ("ic٣ih8oc4kh3", 3, "ic: '٣' is not one of the digits 0-9"),
        ("ic3٣ih8oc4kh3", 4, "ic: '٣' is not one of the digits 0-9"),
        ("ic３ih8oc4kh3", 3, "is not one of the digits 0-9"),
        ("ih8oc4kh3", 1, "ic is missing"),
        ("ic3ih8kh3", 1, "oc is missing"),
        ("ic3oc4", 1, "ih and kh are missing"),
        ("ic3ih8oc4", 4, "kh is missing beside ih"),
        ("ic3oc4kh3", 7, "ih is missing beside kh"),
        ("ic3ih8oc4kh3iw9", 13, "kw is missing beside iw"),
        ("ic3ih8oc4kh3sw2", 13, "iw is missing beside sw"),
        ("ic3ih8oc4kh3ph1pw0", 16, "pw0 disagrees with ph1"),
        ("ic3ih8oc4kh3dh1dw0", 16, "dw0 disagrees with dh1"),
        ("ic3id1ih8oc4kh3", 4, "id asks for both the h and the w words"),
        ("ic3ih8oc4oh3kh1", 10, "oh3 leaves input unused and ph is not given"),
        ("ic3ih8oc4kh9", 10, "kh9 gives an empty output: the filter spans 9 elements with dh0"),
        ("ic3ih8oc4kh3dh4", 10, "the filter spans 11 elements with dh4, and ih8 has 8 with ph0"),
        ("ic3ih2oc4kh3sh2", 10, "empty output"),
        ("g2ic3ih8oc4kh3", 3, "ic3 is not divisible by g2"),
        ("g3ic3ih8oc4kh3", 9, "oc4 is not divisible by g3"),
        ("ic9223372036854775808ih8oc4kh3", 3, "9223372036854775808 is beyond 2^63"),
        (f"ic{'9' * 5000}ih8oc4kh3", 3, "is beyond 2^63"),
        ("ic2147483648ih2147483648oc1kh1", 1, "bytes of the input is"),
        ("ic1ih1oc1048576kh2097152ph2097152", 0, "bytes of the weights"),
        ("ic1ih1oc4kh1ph2147483648", 4, "bytes of the output is"),
        ("ic1048576ih1024oc1048576kh1024ph512", 16, "count of operations is"),
        ('ic3ih8oc4kh3n"a', 14, "the name's quote is not closed"),
        ('ic3ih8oc4kh3n"', 14, "the name's quote is not closed"),
        ('ic3ih8oc4kh3n"a"b', 17, "text after the name's quote"),
        ('ic3ih8oc4kh3n"a"b"', 17, "text after the name's quote"),
        ('ic3ih8oc4kh3n"a\\"', 14, "the name's quote is not closed"),
        ('ic3ih8oc4kh3n"a" mb1', 17, "text after the name's quote"),
        ('ic3ih8oc4kh3na"', 15, "in a name without quotes"),
        ("ic3ih8oc4kh3na b", 15, "in a name without quotes"),
        ("ic3ih8oc4kh3n", 13, "n has no name"),
        ('ic3ih8oc4kh3n"a\nb"', 14, "the name holds '\\n'"),
        ('ic3ih8oc4kh3n"a\x00b"', 14, "the name holds '\\x00'"),
        ('ic3ih8oc4kh3n"a*0"', 14, "the multiplicity must be positive"),
        ('ic3ih8oc4kh3n"a"*0', 14, "the multiplicity must be positive"),
        ('ic3ih8oc4kh3n"a*2"*3', 13, "the multiplicity is repeated"),
        ("ic3ih8oc4kh3*", 13, "is no multiplicity"),
        ("ic3ih8oc4kh3*x", 13, "'x' is no multiplicity"),
        ("ic3ih8oc4kh3*٣", 13, "is no multiplicity"),
    ],
)
def test_misuse_is_located_and_named(words: str, column: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Conv2d.parse(words, where="layers.txt:7")
    lines = str(caught.value).splitlines()
    assert message in lines[0]
    if column:
        assert lines[0].startswith(f"layers.txt:7:{column}: ")
        assert lines[2].index("^") - 4 == min(column - 1, 90)


@pytest.mark.parametrize(
    "words", ["ic3id4ih8oc4kh3", "ic3ih8oc4kh3kd3", "ic3ih8oc4kh3pd1", "ic3id8oc4kd3"]
)
def test_3d_words_are_for_another_class(words: str) -> None:
    with pytest.raises(UnsupportedError, match="3-D words, which Conv3d reads"):
        Conv2d.parse(words)


def test_errors_without_a_place() -> None:
    with pytest.raises(SpecError) as caught:
        Conv2d.parse("g4ic6ih8oc8kh3")
    assert str(caught.value) == "ic6 is not divisible by g4\n    g4ic6ih8oc8kh3\n      ^"


def test_long_texts_are_shown_around_the_caret() -> None:
    with pytest.raises(SpecError) as caught:
        Conv2d.parse(f'{SQUARE}n"{"x" * 500}"y')
    lines = str(caught.value).splitlines()
    assert len(lines[1]) <= 104
    assert lines[1][lines[2].index("^")] == "y"


def test_an_error_survives_a_pipe() -> None:
    with pytest.raises(SpecError) as caught:
        Conv2d(1, 6, 8, 8, 8, 3, 3, groups=4)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_is_no_text() -> None:
    with pytest.raises(TypeError, match="text: expected str, got b'ic3"):
        Conv2d.parse(SQUARE.encode())  # type: ignore[arg-type]


def test_operators_are_listed() -> None:
    assert OPS["conv"].problem is Conv2d
