"""Devices that runs compute on, and measurements of this machine."""
