"""Where arrivals come from: virtual time, a script, or real clients."""
