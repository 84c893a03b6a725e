"""The FedRDMA paper's evaluation, measured with this project: one module for each figure or table."""
