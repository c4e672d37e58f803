"""A run as one HTML page that needs nothing else: no network, no second file."""
