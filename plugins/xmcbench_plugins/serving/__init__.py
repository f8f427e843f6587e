"""Serving: the model of a trial answers over HTTP, as Annif asks, or is published on the Hugging Face hub."""
