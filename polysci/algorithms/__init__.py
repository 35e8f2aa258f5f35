"""Ways to compute a problem: direct loops around the microkernel, Winograd."""
