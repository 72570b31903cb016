"""Handwritten digits on Flower, asynchronously."""
