"""Verdicts for people and for machines: terminal, JSON."""
