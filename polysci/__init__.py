"""Fast CPU primitives: polyhedral outer loops around hand-written microkernels."""
