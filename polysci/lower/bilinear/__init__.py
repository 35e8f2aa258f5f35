"""Bilinear algorithms for products: sums of blocks, fewer products of these, sums of products."""
