"""Metrics of predictions that are there already: of other programs, of several trials fused, of a store again."""
