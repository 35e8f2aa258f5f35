"""Winograd's minimal filtering for 3x3 convolutions: schedules of its own around the same GEMMs."""
