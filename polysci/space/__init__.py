"""The schedules of a problem: enumerated as families, resolved to plans."""
