"""The testbed: hosts with Soft-RoCE devices, joined by a WAN, inside one User Mode Linux guest.

Standard library only, so that any Python from 3.10 on runs it. See docs/testbed.md.
"""
