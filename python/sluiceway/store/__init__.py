"""Paths and folders of chunk stores, the files or devices in which the disk tier is kept."""
