"""The conformance suite: checks that a plugin keeps its contract, behind `xmcbench check` and the pytest plugin."""
