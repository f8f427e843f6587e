"""`xmcbench plan`: what the trials of a suite will cost, before any of them runs."""
