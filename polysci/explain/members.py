"""An explanation as JSON members."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from polysci.explain.model import Explanation


def members(it: Explanation) -> dict[str, Any]:
    """Everything that ``render`` prints, as numbers: seconds, bytes, GFLOP/s."""
    return {
        "title": it.title,
        "domain": str(it.scop.domain()),
        "reads": str(it.scop.reads()),
        "writes": str(it.scop.writes()),
        "dependences": [_dependence(one) for one in it.dependences],
        "dimensions": {d.name: {"extent": d.extent, "role": d.role} for d in it.dims},
        "roles": str(it.contraction),
        "reuse": [one.to_json() for one in it.reuse],
        "machine": it.machine,
        "threads": it.threads,
        "flops": it.flops,
        "schedule": str(it.schedule),
        "origin": it.origin,
        "predicted_seconds": it.terms.seconds,
        "measured_seconds": it.measured,
        "peak_gflops": it.peak,
        "terms": it.terms.to_json(),
        "inside": [
            asdict(one)
            | {
                "extents": dict(one.extents),
                "kept": dict(zip("abc", one.kept, strict=True)),
                "working_set": one.working_set,
            }
            for one in it.inside
        ],
        "traffic": [asdict(flow) | {"total": flow.total} for flow in it.flows],
        "roofline": {
            "roofs": [asdict(roof) for roof in it.roofs],
            "binding": it.binding.name,
            "predicted_gflops": it.rate(it.terms.seconds),
            "measured_gflops": it.rate(it.measured) if it.measured else None,
        },
        "rivals": [
            {
                "differs_in": rival.trait,
                "schedule": str(rival.schedule),
                "predicted_seconds": rival.terms.seconds,
                "why": rival.why,
                "terms": rival.terms.to_json(),
            }
            for rival in it.rivals
        ],
        "rankers": [view.to_json() for view in it.views],
    }


def _dependence(one: Any) -> dict[str, Any]:
    told = asdict(one)
    return told | {"distances": {name: [least, most] for name, least, most in one.distances}}
