"""Everything about other sites: control channels, data paths, what is sent, received, lent and borrowed."""
