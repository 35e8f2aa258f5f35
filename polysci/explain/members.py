"""An explanation as JSON members."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from polysci.explain.measured_time import quality_members
from polysci.explain.model import Explanation


def members(explanation: Explanation) -> dict[str, Any]:
    """Everything that ``render`` prints, as numbers: seconds, bytes, GFLOP/s."""
    measured = explanation.measured
    return {
        "title": explanation.title,
        "domain": str(explanation.scop.domain()),
        "reads": str(explanation.scop.reads()),
        "writes": str(explanation.scop.writes()),
        "dependences": [_dependence(dependence) for dependence in explanation.dependences],
        "dimensions": {d.name: {"extent": d.extent, "role": d.role} for d in explanation.dims},
        "roles": str(explanation.contraction),
        "reuse": [reuse.to_json() for reuse in explanation.reuse],
        "machine": explanation.machine,
        "threads": explanation.threads,
        "flops": explanation.flops,
        "multiplied_flops": explanation.multiplied,
        "schedule": str(explanation.schedule),
        "origin": explanation.origin,
        "predicted_seconds": explanation.terms.seconds,
        "measured_seconds": measured.seconds if measured else None,
        **quality_members(measured),
        "peak_gflops": explanation.peak,
        "terms": explanation.terms.to_json(),
        "inside": [
            asdict(row)
            | {
                "extents": dict(row.extents),
                "kept": dict(zip("abc", row.kept, strict=True)),
                "working_set": row.working_set,
            }
            for row in explanation.inside
        ],
        "traffic": [asdict(flow) | {"total": flow.total} for flow in explanation.flows],
        "roofline": {
            "roofs": [asdict(roof) for roof in explanation.roofs],
            "binding": explanation.binding.name,
            "predicted_gflops": explanation.needed_rate(explanation.terms.seconds),
            "measured_gflops": explanation.needed_rate(measured.seconds) if measured else None,
        },
        "rivals": [
            {
                "differs_in": rival.trait,
                "schedule": str(rival.schedule),
                "predicted_seconds": rival.terms.seconds,
                "why": rival.why,
                "terms": rival.terms.to_json(),
            }
            for rival in explanation.rivals
        ],
        "rankers": [view.to_json() for view in explanation.views],
    }


def _dependence(dependence: Any) -> dict[str, Any]:
    content = asdict(dependence)
    return content | {"distances": {name: [low, high] for name, low, high in dependence.distances}}
