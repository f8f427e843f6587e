"""Predictions that another program made: read from its files, checked, and kept as a record of unknown budget."""
