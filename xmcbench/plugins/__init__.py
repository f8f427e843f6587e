"""Plugins: what they may register, how they are found and looked up by name, and the optional packages some need."""
