"""Data sets that are read from packages: the departures of 2013 from New York."""
