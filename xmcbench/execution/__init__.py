"""Ways to carry a trial out."""
