"""C libraries that read tokens: prompts and single tokens on one state, two sequences, guards."""

from pathlib import Path
from typing import Any

import pytest

import polysci
from polysci import Generation
from polysci.errors import SpecError
from polysci.export.freestanding import write_freestanding
from polysci.export.network_project import write_project
from polysci.network.compiled import Network
from polysci.network.sizes import join_sizes
from tests.support.exported import WARNINGS, numbers_of, run
from tests.support.token_graphs import CAPACITY, TokenModel

LENGTHS, PROMPT, COUNT = (1, 5), [3, 1, 4, 1, 5, 9, 2], 12
OPTIONS = polysci.CompileOptions("estimate", positions="positions", name="lm")
MAIN = """\
#include "lm.h"
#include <stdio.h>
#include <string.h>
static int64_t best(const float *scores)
{
    int64_t at = 0;
    for (int64_t i = 1; i < LM_RESULTS; ++i)
        at = scores[i] > scores[at] ? i : at;
    return at;
}
/* Two sequences in turns, the second behind an empty prompt's first token; then the first again. */
int main(void)
{
    static float scores[2][LM_RESULTS];
    static char kept[LM_STATE_SIZE];
    static const int64_t prompt[] = {3, 1, 4, 1, 5, 9, 2};
    lm_model *model = lm_load("lm.weights", 0);
    lm_context *one = model ? lm_new(model) : 0, *other = model ? lm_new(model) : 0;
    if (!one || !other || lm_prefill(one, prompt, 0, scores[0]) != LM_NO_TOKENS)
        return 1;
    if (lm_prefill(one, prompt, 7, scores[0]) || lm_prefill(other, prompt, 1, scores[1]))
        return 2;
    memcpy(kept, lm_state(one), sizeof kept);
    for (int i = 0; i < 12; ++i) {
        const int64_t token = best(scores[0]), beside = best(scores[1]);
        printf("%d %d\\n", (int)token, (int)beside);
        if (lm_decode(one, token, scores[0]) || lm_decode(other, beside, scores[1]))
            return 3;
    }
    if (lm_position(one) != 19 || lm_prefill(one, prompt, 6, scores[0]) != LM_FULL)
        return 4;
    for (int i = 0; i < 5; ++i)
        if (lm_decode(one, 0, scores[0]))
            return 5;
    if (lm_decode(one, 0, scores[0]) != LM_FULL)
        return 6;
    memcpy(lm_state(other), kept, sizeof kept);
    lm_reset(one);
    if (lm_position(one) != 0 || lm_position(other) != 7 || lm_decode(other, 8, scores[0]))
        return 7;
    if (lm_prefill(one, prompt, 7, scores[1]) || lm_decode(one, 8, scores[1]))
        return 8;
    if (memcmp(scores[0], scores[1], sizeof scores[0]))
        return 9;
    lm_reset(one);
    int64_t token = lm_next(one, prompt, 7, 0, 0, 0);
    for (int i = 0; i < 12; ++i, token = lm_next(one, &token, 1, 0, 0, 0))
        printf("%d\\n", (int)token);
    if (lm_next(one, prompt, 7, 0, 0, 0) != -LM_FULL
        || lm_next(one, prompt, 0, 0, 0, 0) != -LM_NO_TOKENS)
        return 10;
    lm_free(one);
    lm_free(other);
    lm_unload(model);
    return 0;
}
"""


MODEL = TokenModel()


@pytest.fixture(scope="module")
def networks() -> dict[int, Network]:
    """A network of one program for each length."""
    return {length: polysci.compile_network(MODEL.graph(length), OPTIONS) for length in LENGTHS}


@pytest.mark.exhaustive
def test_a_c_program_generates(networks: dict[int, Network], tmp_path: Path) -> None:
    whole = join_sizes([({"T": length}, network) for length, network in networks.items()], "lm")
    write_project(whole, tmp_path / "lm")
    rows = numbers_of(tmp_path / "lm", MAIN)
    assert [row[0] for row in rows[:COUNT]] == MODEL.greedy(PROMPT, COUNT)
    assert [row[1] for row in rows[:COUNT]] == MODEL.greedy(PROMPT[:1], COUNT)
    assert [row[0] for row in rows[COUNT:]] == MODEL.greedy(PROMPT, COUNT)


GUARDED = """\
#define _DEFAULT_SOURCE
#include "lm.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
/* The arena begins behind a page that nobody may touch, or ends before one. */
int main(void)
{
    const size_t page = 4096, pages = (LM_ARENA_SIZE + page - 1) / page * page;
    char *memory = mmap(0, pages + 2 * page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE)
        || mprotect(memory + page + pages, page, PROT_NONE))
        return 1;
    char *places[2] = {memory + page, memory + page + (pages - LM_ARENA_SIZE) / 64 * 64};
    float scores[2][LM_Y0_COUNT];
    for (int side = 0; side < 2; ++side) {
        if (lm_reset(lm_weights, places[side] + 1) != LM_NO_WEIGHTS)
            return 2;
        if (lm_reset(lm_weights, places[side]))
            return 3;
        for (int64_t token = 0; token < 30; ++token) /* more than there is room for */
            if (lm_run(lm_weights, places[side], &token, scores[side]))
                return 3;
    }
    return memcmp(scores[0], scores[1], sizeof scores[0]) ? 4 : 0;
}
"""


@pytest.mark.exhaustive
def test_state_between_guard_pages(networks: dict[int, Network], tmp_path: Path) -> None:
    """Freestanding code keeps state in the caller's arena, and stays inside."""
    write_freestanding(networks[1], tmp_path / "free")
    (tmp_path / "free" / "guarded.c").write_text(GUARDED)
    files = sorted(path.name for path in (tmp_path / "free").glob("lm*.c"))
    words = ["-std=c11", "-O1", *WARNINGS, "-Wno-unknown-pragmas"]
    built = run("gcc", *words, "-o", "guarded", "guarded.c", *files, "-lm", cwd=tmp_path / "free")
    assert built.returncode == 0, built.stdout
    assert run("./guarded", cwd=tmp_path / "free").returncode == 0
    checked = run("make", "check", "CFLAGS=-O1 -Werror", cwd=tmp_path / "free")
    assert checked.returncode == 0 and " 0 failed" in checked.stdout, checked.stdout


def test_python_generates(networks: dict[int, Network]) -> None:
    alone = Generation([networks[1]])
    assert [*alone.generate(PROMPT, COUNT)] == MODEL.greedy(PROMPT, COUNT)
    assert alone.position == len(PROMPT) + COUNT - 1 and alone.capacity == CAPACITY
    with pytest.raises(SpecError, match="tokens: 7 behind 18: the state has room for 24"):
        alone.prefill(PROMPT)
    with pytest.raises(SpecError, match="tokens: expected at least one"):
        alone.prefill([])
    alone.reset()
    assert [*alone.generate(PROMPT, 2)] == MODEL.greedy(PROMPT, 2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"positions": "place"}, "positions 'place': no input has that name"),
        ({"positions": "keys"}, "positions 'keys': no input has that name"),
        ({"mask": "token_id"}, "mask 'token_id': no input has that name; did you mean 'token_ids'"),
        ({"state": {"k": "v"}}, "state 'k': no input has that name"),
        ({"state": {"token_ids": "v"}}, "state 'token_ids': no output is 'v'"),
        ({"state": {"token_ids": "OUT"}}, "is float32[5, 11], of another shape or type, and not"),
    ],
)
def test_inputs_that_are_none(options: dict[str, Any], reason: str) -> None:
    graph = MODEL.graph(5)
    if "state" in options:
        scores = graph.outputs[-1].name
        options = {"state": {k: v.replace("OUT", scores) for k, v in options["state"].items()}}
    with pytest.raises(SpecError) as error:
        polysci.compile_network(graph, "estimate", **options)
    assert reason in str(error.value)


@pytest.mark.exhaustive
def test_networks_that_read_no_tokens(networks: dict[int, Network]) -> None:
    with pytest.raises(SpecError, match=r"reads \[5\] tokens at a time, and never one"):
        Generation([networks[5]])
    plain = polysci.compile_network(MODEL.graph(1), "estimate")
    with pytest.raises(SpecError, match="nothing counts its tokens; compile with positions=INPUT"):
        Generation([plain])
