"""Loop nests as isl objects: extraction, contraction, schedules, legality, footprints."""
