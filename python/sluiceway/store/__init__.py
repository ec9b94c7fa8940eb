"""Paths and folders of chunk stores, which keep the disk tier."""
