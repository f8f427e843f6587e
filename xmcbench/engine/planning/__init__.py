"""What a trial will take, worked out before it runs: operations, time, memory, messages between workers."""
