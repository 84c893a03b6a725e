"""The testbed: hosts with Soft-RoCE devices, joined by a WAN, inside one User Mode Linux guest.

Standard library only, so that any Python 3.11 runs it. See docs/testbed.md.
"""
