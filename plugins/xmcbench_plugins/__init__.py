"""The first-party plugins. Each is a package that is registered through the same hooks as a third party's plugin."""
