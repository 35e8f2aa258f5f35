"""Which cases only ``make test-all`` runs: all but a few of the long tests.

A row names a test of a file and the distance between two of its cases that ``make test`` keeps;
0 keeps the first case alone, None keeps none of them. ``*`` stands for the file's other tests.
A test that asks for the measured ``machine`` needs no row: only ``make test-all`` calibrates.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

KEPT_EVERY: dict[str, dict[str, int | None]] = {
    "algorithms/test_winograd.py": {
        "test_exported_layers_pass_their_own_test": 0,
        "test_results_are_within_the_bound_between_guard_pages": 5,
    },
    "cli/test_cli_compile.py": {
        "test_every_tensor_beside_the_reference": 0,
        "test_no_peer_in_bf16": None,
    },
    "codegen/test_operators.py": {
        "test_random_schedules_are_right": 7,
        "test_the_choice_of_the_model_is_right": 7,
    },
    "codegen/test_precisions.py": {"test_random_schedules_are_right": 7},
    "export/test_export.py": {"test_c_compiles_without_warnings_and_passes_its_own_test": 9},
    "export/test_export_precisions.py": {
        "test_every_instruction_set_passes": 0,
        "test_several_precisions_in_a_project": 0,
        "test_a_python_package_computes_the_same": 3,
    },
    "export/test_export_units.py": {"test_every_instruction_set_passes": 0},
    "microkernels/test_aarch64.py": {
        "test_kernels_are_exact_and_stay_inside_their_operands": 0,
        "*": None,
    },
    "microkernels/test_microkernels.py": {
        "test_kernels_are_exact_and_stay_inside_their_operands": 23,
        "test_every_choice_of_types_computes_and_packs": 23,
        "test_a_faulty_primitive_is_noticed": 11,
        "test_gcc_accepts_what_has_a_stand_in": None,
        "test_symbols_of_the_units_are_the_names_of_the_registry": 0,
        "test_portable_kernels_under_sanitizers": None,
        "test_clang_accepts_every_choice_of_types": None,
        "test_clang_compiles_the_same_kernels": None,
    },
    "microkernels/test_tiles.py": {"test_emulated_tiles_under_sanitizers": None, "*": 0},
    "models/test_all_layers.py": {"test_every_layer_in_some_precision": 8},
    "network/test_light_models.py": {"test_the_results_that_come_with_the_models": None},
    "network/test_onnx_backend.py": {"test_node_tests_agree_or_are_refused": None},
    "network/test_projects.py": {"test_weights_inside_the_library": 0, "test_threads": 0},
    "project/test_package.py": {
        "test_installed_it_finds_its_data": None,
        "test_installed_it_optimises_outside_the_checkout": None,
    },
}


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark what ``make test`` leaves out: by the table, and whatever needs a whole calibration."""
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        if "machine" in getattr(item, "fixturenames", ()):
            item.add_marker("exhaustive")
        file = "/".join(item.path.parts[-2:])
        name = getattr(item, "originalname", item.name)
        rows = KEPT_EVERY.get(file, {})
        if name not in rows and "*" not in rows:
            continue
        distance = rows.get(name, rows.get("*"))
        index = seen[file, name]
        seen[file, name] += 1
        if distance is None or (index % distance if distance else index):
            item.add_marker("exhaustive")


def selected(session: pytest.Session, parameter: str, kind: type) -> list[Any]:
    """The values of a parameter in the tests that will run, for fixtures that prepare them all."""
    specs = [getattr(item, "callspec", None) for item in session.items]
    values = [spec.params.get(parameter) for spec in specs if spec]
    return list(dict.fromkeys(value for value in values if isinstance(value, kind)))
