"""Measured schedules kept across runs: a SQLite file, with JSON export and import."""

from polysci.tune.wisdom.file import Repair, Wisdom
from polysci.tune.wisdom.record import LEVELS, TRIAL, Record, canonical_features

__all__ = ["LEVELS", "TRIAL", "Record", "Repair", "Wisdom", "canonical_features"]
