"""A trial: its key, budget and ledger, the contract of a method, its predictions, its record, and the store."""
