"""Leaderboards, tables, figures and pages from records and from the results that papers print."""
