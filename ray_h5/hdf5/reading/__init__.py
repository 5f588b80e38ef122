"""Requests for rows -> jobs that fetch and decode chunks."""
