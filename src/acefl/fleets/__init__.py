"""Clients at work, simulated or real: when things happen, and how models and updates travel."""
