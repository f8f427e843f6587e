"""Running trials: what to run, in which order, one attempt from data to record, and the executors (local, Ray)."""
