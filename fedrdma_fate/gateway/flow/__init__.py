"""FATE Flow's scheduling calls: taken from the own server, carried between gateways, handed to the other."""
