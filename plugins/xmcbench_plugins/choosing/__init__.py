"""`xmcbench tune`: which method a dataset needs, by held-out training queries."""
