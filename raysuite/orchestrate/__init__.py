"""The driver: run plans on many workers through Ray."""
