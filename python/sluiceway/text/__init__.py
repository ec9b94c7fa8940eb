"""Turns files of text into batches of tokens."""
