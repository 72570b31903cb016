"""A federation in which much goes wrong."""
