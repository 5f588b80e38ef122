"""Groups that are rows: tables of them, their columns and attributes."""
