"""The tests. A package, so that no installed distribution that ships a `tests` of its own takes its place."""
