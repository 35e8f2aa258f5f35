"""Compiler flags that only some files of an exported project need."""

import pytest

from polysci.export.build_texts import file_flags
from polysci.printers.headers import target_lines
from polysci.target.isa import Isa

ROW = Isa("made_up", (), 4, 16, own_flags=("-msve-vector-bits=256", "-DA=1"))


def test_build_files_give_flags_to_the_files_that_need_them() -> None:
    text = f"/* a schedule */\n{target_lines(ROW)}\n"
    sources = {"lib.c": "int f;\n", "lib_made_up.c": text, "lib.h": text, "lib.weights": b""}
    assert file_flags(sources) == {
        "FILE_FLAGS_MAKE": "lib_made_up.o: FLAGS += -msve-vector-bits=256 -DA=1\n",
        "FILE_FLAGS_CMAKE": "set_source_files_properties(lib_made_up.c PROPERTIES "
        'COMPILE_OPTIONS "-msve-vector-bits=256;-DA=1")\n',
    }


@pytest.mark.parametrize(
    ("header", "machines"),
    [
        ("arm_sve.h", "aarch64% arm64%"),
        ("riscv_vector.h", "riscv64%"),
        ("wasm_simd128.h", "wasm32%"),
    ],
)
def test_flags_of_one_kind_of_processor_are_for_its_compilers(header: str, machines: str) -> None:
    text = f"/* a schedule */\n{target_lines(ROW)}\n#include <{header}>\n"
    flags = file_flags({"lib.c": "int f;\n", "lib_made_up.c": text})
    condition = f"$(filter {machines},$(shell $(CC) -dumpmachine))"
    assert flags["FILE_FLAGS_MAKE"] == (
        f"lib_made_up.o: FLAGS += $(if {condition},-msve-vector-bits=256 -DA=1)\n"
    )
    assert flags["FILE_FLAGS_CMAKE"] == (
        "include(CheckCCompilerFlag)\n"
        'check_c_compiler_flag("-msve-vector-bits=256 -DA=1" KNOWS_FLAGS_OF_lib_made_up)\n'
        "if(KNOWS_FLAGS_OF_lib_made_up)\n"
        "  set_source_files_properties(lib_made_up.c PROPERTIES "
        'COMPILE_OPTIONS "-msve-vector-bits=256;-DA=1")\nendif()\n'
    )


def test_projects_of_our_own_instruction_sets_have_none() -> None:
    assert file_flags({"lib.c": "#define PS_TARGET\n"}) == dict.fromkeys(
        ("FILE_FLAGS_MAKE", "FILE_FLAGS_CMAKE"), ""
    )
