"""Label tables: rows that learn by optimisers of their own, and only where a step touches them."""
