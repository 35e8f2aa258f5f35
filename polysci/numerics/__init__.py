"""Numbers: element types and precisions, scales of 8-bit results, aligned arrays."""
