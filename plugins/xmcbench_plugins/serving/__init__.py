"""Serving: the model of a trial ranks labels for texts, also over HTTP as Annif asks, or goes to the hub."""
