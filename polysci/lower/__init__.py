"""Ways to compute a problem, behind one interface: a row of ``registry`` each."""
