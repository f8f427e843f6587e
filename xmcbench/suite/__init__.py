"""Suites: YAML files that name datasets, methods, budgets and sweeps, checked and expanded into trials."""
