"""Plugins: their hooks, the registry that finds them and looks names up, and optional packages."""
