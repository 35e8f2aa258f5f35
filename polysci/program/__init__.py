"""Programs: stages in an order that runs, and the passes over them."""
