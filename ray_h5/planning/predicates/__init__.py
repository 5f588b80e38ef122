"""Predicates: criteria of a user -> expressions -> row ids."""
