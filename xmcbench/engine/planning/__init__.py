"""Predicts the costs of a trial: operations, time, memory, and messages between workers."""
