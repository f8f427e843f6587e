"""A trial: its key, budget and ledger, the contract of a method, its predictions and record, and the store they lie in."""
