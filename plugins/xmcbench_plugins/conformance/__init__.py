"""Tools for authors of plugins: a package to begin with, and the rules that a plugin has to keep."""
