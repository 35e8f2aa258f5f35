"""A scattering nest as dense ones: each class of the result's pixels by its residue."""
